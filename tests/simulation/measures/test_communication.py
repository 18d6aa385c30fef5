"""What methods send, against what they say that their papers' algorithms send."""

import numpy as np
import pytest
import tensorflow as tf

from simulation.measures import communication
from tests.tff_algos import cases, shared
from tff_algos import registry

# The start needs full gradients, in the first round only. As a round is one computation, later
# rounds have the place for them too, filled with zeros; a method's `cost` leaves them out.
ZEROS_UP = {"stem": 1, "fafed": 2}
OPTIONS = [
    ("adafedadam", {"loss_reference": "none"}, (1, 1)),
    ("centralized", {"client_optimizer": "adam"}, (3, 3)),  # x and both moments.
    ("fedavg", {"client_optimizer": "adam"}, (1, 1)),  # Moments stay where they are.
    ("fedlocal", {"correction": "local"}, (1, 1)),
    ("lookahead", {"state": "average"}, (2, 2)),
    ("mimelite", {"client_optimizer": "adam"}, (3, 2)),
]
# A method of several processes sends what these send.
METHODS = [n for n in cases.OWN if not registry.get(n).staged]


def rounded(cost):
    # Scalars (weights, rates, metrics) are less than a hundredth of the model.
    assert all(0 <= v - round(v) < 0.01 for v in cost.in_models())
    return tuple(round(v) for v in cost.in_models())


@pytest.mark.quick_cases("fedavg", "adafedadam", "stem")
@pytest.mark.parametrize(
    "name",
    shared.methods(METHODS),
)
def test_messages_are_as_large_as_the_paper_has_them(name):
    cost = registry.get(name).cost
    want = cost.down, cost.up + ZEROS_UP.get(name, 0)
    assert rounded(communication.measure_method(name)) == want


@pytest.mark.quick_cases("fedavg-*", "mimelite-*")
@pytest.mark.parametrize(("name", "settings", "want"), OPTIONS)
def test_options_change_what_is_sent(name, settings, want):
    assert rounded(communication.measure_method(name, **settings)) == want


def test_values_are_counted_once_and_by_their_size():
    federation = communication.RecordingFederation()
    x = federation.broadcast((tf.zeros([3, 2]), tf.zeros([])))
    assert federation.down == 7
    a, b = federation.map_clients(lambda x: (x[0] + 1, x[1] + 2), x)
    mean = federation.mean(a, b)
    np.testing.assert_array_equal(mean, np.ones((3, 2)))
    assert federation.up == 7
    assert federation.stack((a, b))[0].shape == (1, 3, 2) and federation.up == 7
    assert federation.sum(b) == federation.max(b) == 2 and federation.up == 7
    federation.sum(a + 1)
    assert federation.up == 13
    assert np.all(federation.mean(a, tf.zeros([])) == 0)
