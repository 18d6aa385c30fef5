import numpy as np
import pytest

from simulation.measures import evaluation, training_losses
from simulation.rounds import cohorts
from tasks.task import ArrayFederatedData
from tests.oracles import problem as problem_lib
from tests.tff_algos import toy
from tff_suite.hparams import HparamError

SIZES = (4, 0, 9, 1, 6)


@pytest.fixture(scope="module")
def problem():
    return problem_lib.make_problem(0, SIZES)


@pytest.fixture(scope="module")
def train(problem):
    x, y = (np.concatenate(parts) for parts in zip(*problem.clients, strict=True))
    ends = np.cumsum(SIZES)
    rows = np.split(np.arange(len(y)), ends[:-1])
    ids = ["a", "b", "c", "d", "e"]
    return ArrayFederatedData(x.astype(np.float32), y.astype(np.int32), rows, ids)


def losses_of(problem, train, max_elements=None):
    evaluator = evaluation.Evaluator(toy.toy_model(problem, dropout=0.5))
    return training_losses.TrainingLosses(evaluator, cohorts.first_examples(train, max_elements))


def moved(problem, scale):
    rng = np.random.default_rng(1)
    return tuple(w + scale * rng.normal(size=w.shape) for w in problem.initial_weights)


def as_float32(weights):
    return [w.astype(np.float32) for w in weights]


@pytest.mark.parametrize("max_elements", [None, 3])
def test_losses_are_those_of_the_closed_form(problem, train, max_elements):
    clients = np.array([2, 1, 0])
    weights = [problem.initial_weights, moved(problem, 0.5)]
    got = losses_of(problem, train, max_elements)([as_float32(w) for w in weights], clients)
    for row, w in zip(got, weights, strict=True):
        for loss, k in zip(row, clients, strict=True):
            x, y = (a[:max_elements] for a in problem.clients[k])
            want = problem_lib.mean_loss(w, x, y) if len(y) else np.nan
            assert loss == pytest.approx(want, rel=1e-5, nan_ok=True)


def test_improved_are_those_whose_loss_did_not_rise(problem, train):
    """Clients without examples count neither way; equal losses count as improved."""
    losses, before = losses_of(problem, train), problem.initial_weights
    shares = set()
    for scale in (0.1, 0.3, 1.0, 3.0):
        after = moved(problem, scale)
        held = [k for k in range(5) if SIZES[k]]
        want = np.mean(
            [
                problem_lib.mean_loss(after, *problem.clients[k])
                <= problem_lib.mean_loss(before, *problem.clients[k])
                for k in held
            ]
        )
        got = losses.improved_fraction(as_float32(before), as_float32(after), np.arange(5))
        assert got == want
        shares.add(got)
    assert shares - {0, 1}, "all or none tells nothing"
    assert losses.improved_fraction(as_float32(before), as_float32(before), np.arange(5)) == 1
    broken = [np.full_like(w, np.nan) for w in as_float32(before)]
    assert losses.improved_fraction(as_float32(before), broken, np.arange(5)) == 0


def test_clients_are_chosen_by_id_or_by_their_first_loss(problem, train):
    losses, initial = losses_of(problem, train), as_float32(problem.initial_weights)
    assert losses.chosen("d,a,d", initial).tolist() == [3, 0]
    by_loss = {
        problem_lib.mean_loss(problem.initial_weights, *problem.clients[k]): k
        for k in range(5)
        if SIZES[k]
    }
    want = [by_loss[min(by_loss)], by_loss[max(by_loss)]]
    assert losses.chosen("extremes", initial).tolist() == want
    with pytest.raises(HparamError, match="there is no client 'x'"):
        losses.chosen("a,x", initial)
    broken = [np.full_like(w, np.nan) for w in initial]
    with pytest.raises(HparamError, match="all losses of the initial model are NaN"):
        losses.chosen("extremes", broken)
