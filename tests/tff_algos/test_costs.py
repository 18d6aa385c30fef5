"""What a method says that a round costs a client, against what it computes.

What it sends is held by `tests/simulation/measures/test_communication.py`.
"""

import pytest

from tests.tff_algos import cases, shared, toy
from tff_algos import registry

METHODS = [n for n in cases.OWN if not registry.get(n).staged]


def gradients_of_round(name, steps):
    """Returns how often a client of one minibatch an epoch asks for the model in training."""
    problem = shared.problem()
    model, asked = toy.eager_model(problem), []

    def forward(weights, batch, training, seed):
        asked.append(training)
        return model.forward(weights, batch, training, seed)

    counted = model._replace(forward=forward)
    plan = registry.RoundPlan(local_steps=steps)
    rounds = toy.run_eagerly(
        name, problem, counted, [(1,)], lambda *_: plan, **cases.CASES[name][0].settings
    )
    assert len(list(rounds)) == 1
    return sum(asked)


@pytest.mark.parametrize("name", shared.methods(METHODS))
def test_a_local_step_takes_as_many_gradients_as_the_method_says(name):
    """One step more takes so many more; passes over all examples are of the first epoch alone."""
    more = gradients_of_round(name, 4) - gradients_of_round(name, 3)
    assert more == registry.get(name).cost.gradients
