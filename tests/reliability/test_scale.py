"""Ten thousand rounds, and a hundred thousand clients with state, in bounded memory and disk."""

import functools
import json

import pytest

from simulation.records import client_states
from tests.reliability import disturb, runs
from tests.test_run_experiment import rows_but_times

ROUNDS = runs.number("SCALE_ROUNDS", 10_000)
CLIENTS = runs.number("SCALE_CLIENTS", 100_000)
_MIB = 1 << 20
_SECONDS = 7000
# A row of metrics.csv and of TensorBoard's file; everything else stays as large as it is.
_BYTES_A_ROUND = 1500
_CASES = [
    ("stateless", "tff"),
    ("stateless", "vectorized"),
    ("client_state", "tff"),
    ("client_state", "vectorized"),
    ("server_vectors", "tff"),
    ("staged", "tff"),
]


def memory(path):
    """Returns round → resident bytes."""
    return {int(r): int(size) for r, size in map(str.split, path.read_text().splitlines())}


def bytes_in(folder, *names):
    paths = [folder / name for name in names] or folder.rglob("*")
    return sum(path.stat().st_size for path in paths if path.is_file())


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(("family", "runtime"), _CASES)
def test_ten_thousand_rounds(family, runtime, tmp_path, record_property):
    """Between a fifth of the rounds and all, memory grows by less than 2 % and 8 MiB."""
    told = functools.partial(disturb.tell_memory, str(tmp_path / "memory"), ROUNDS // 5)
    every = max(1, ROUNDS // 100)
    arguments = runs.command(
        family, runtime, ROUNDS, rounds_per_checkpoint=every, rounds_per_eval=every
    )
    always = runs.FAMILIES[family].always
    folder = runs.finish(arguments, tmp_path, [*always, told], _SECONDS)
    resident = memory(tmp_path / "memory")
    early, late = resident[ROUNDS // 5], resident[ROUNDS]
    record_property("rounds", ROUNDS)
    record_property("mib_early", round(early / _MIB, 1))
    record_property("mib_late", round(late / _MIB, 1))
    assert late - early < min(0.02 * early, 8 * _MIB), resident
    assert len(rows_but_times(folder)) == ROUNDS + 1
    assert bytes_in(folder) < 4 * _MIB + _BYTES_A_ROUND * ROUNDS


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
def test_a_hundred_thousand_clients_with_state(runtime, tmp_path, record_property):
    """Memory is that of a thirtieth of the clients' states, disk that of three states a client.

    A hundredth of all clients takes part in a round, so that about two thirds have a state at the
    end. Between the rounds, memory grows by less than half of what the states take that came in.
    """
    rounds, cohort = 100, CLIENTS // 100
    arguments = [
        "--import=tests.reliability.many_clients",
        "--task=many_clients",
        f"--many_clients_num_clients={CLIENTS}",
        "--experiment_name=run",
        "--algorithm=scaffold",
        f"--runtime={runtime}",
        "--server_learning_rate=1",
        "--client_learning_rate=0.1",
        "--client_batch_size=2",
        f"--total_rounds={rounds}",
        f"--clients_per_round={cohort}",
        "--rounds_per_checkpoint=5",
        "--rounds_per_eval=50",
        "--client_state_memory_mb=2",
    ]
    told = functools.partial(disturb.tell_memory, str(tmp_path / "memory"), 10)
    folder = runs.finish(arguments, tmp_path, [told], _SECONDS)
    states = client_states.read_all(str(folder / "client_states.sqlite"))
    size = sum(part.nbytes for part in next(iter(states.values())).values())
    resident = memory(tmp_path / "memory")
    record_property("clients_with_state", len(states))
    record_property("mib_early", round(resident[20] / _MIB, 1))
    record_property("mib_late", round(resident[90] / _MIB, 1))
    assert 0.5 * CLIENTS < len(states) <= CLIENTS
    came = size * 0.45 * CLIENTS
    assert resident[90] - resident[20] < 8 * _MIB + 0.25 * came, resident
    # A version beside the newest for those of the rounds since the older checkpoint.
    assert bytes_in(folder, "client_states.sqlite") < 3 * (size + 100) * len(states)
    assert bytes_in(folder) < bytes_in(folder, "client_states.sqlite") + 100 * CLIENTS + 4 * _MIB
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["finished"] and summary["final"]["eval/accuracy"] > 0.2
