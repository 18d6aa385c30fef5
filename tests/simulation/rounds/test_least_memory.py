"""What a round takes at least: no more than it does take, and refused where that does not fit."""

import functools
import pathlib

import numpy as np
import pytest

import tasks
import tff_algos
from benchmarks import harness, peaks
from reproduction import items
from simulation import assembly, experiment_flags, in_python, runtimes, task_models
from simulation.engine.program import Program
from simulation.rounds import least_memory
from simulation.rounds.least_memory import Sizes
from simulation.runtimes import MAX_VECTORIZED_PARAMETERS
from tasks.models import losses
from tests.simulation import toy_extension  # noqa: F401
from tests.simulation.engine.test_scheduler import built, program_of
from tff_suite import memory
from tff_suite.hparams import HparamError

_REPO = pathlib.Path(__file__).resolve().parent.parent.parent.parent
GIB = 2**30


def given(name, runtime, **more):
    """Returns the settings of a run on five of the toy's six clients."""
    settings = dict(
        task="toy",
        algorithm=name,
        total_rounds=2,
        clients_per_round=5,
        client_batch_size=3,
        client_learning_rate=0.1,
        runtime=runtime,
    )
    if tff_algos.get(name).server_learning_rate is None:
        settings["server_learning_rate"] = 0.1
    return {**settings, **more}


@pytest.mark.quick_cases("scaffold")
@pytest.mark.parametrize("name", ["fedadam", "scaffold", "adafed", "term"])
def test_sizes_are_those_of_the_methods_round(name):
    size = sum(w.nbytes for w in built(name).model.initial_weights)
    sizes = least_memory.sizes_of(program_of(name), size)
    # Beside vectors of the model's size a few numbers: losses, weights, visits.
    vectors = [round(of_client / size) for of_client in sizes]
    expected = {"fedadam": [1, 0, 0, 0], "scaffold": [1, 0, 0, 1], "adafed": [1, 1, 0, 0]}
    assert vectors == expected.get(name, [1, 0, 1, 0])
    assert sizes.state in (0, size + 4)


def of(sizes, runtime="tff", chunk=None, workers=0, threads=2, memory_mb=1024, **named):
    settings = {
        "runtime": runtime,
        "clients_per_chunk": chunk,
        "workers": workers,
        "client_state_memory_mb": memory_mb,
    }
    data = np.arange(1, 11)
    return least_memory.total(
        least_memory.of_round(sizes, data, settings, threads, **named),
    )


def test_the_formulas():
    """Ten clients of 1 to 10 bytes."""
    plain, stacks = Sizes(100), Sizes(100, stacked=104)
    keeps, holds = Sizes(100, state=104), Sizes(100, kept=108)
    assert of(plain) == 10 + 2 * 100
    assert of(plain, threads=64) == 10 + 10 * 100
    assert of(plain, "vectorized") == 55 + 10 * 200
    assert of(plain, "vectorized", chunk=4) == 10 + 4 * 200
    assert of(plain, "native") == 2 * 55 + 10 * 100
    assert of(stacks) == of(stacks, chunk=4) == of(stacks, workers=3, chunk=4) == 2 * 10 * 104
    assert of(stacks, "vectorized") == 55 + 10 * 200
    assert of(stacks, "native") == 2 * 55 + 2 * 10 * 104
    # The store has them once more.
    assert of(keeps) == 3 * 10 * 104 + 10 * 104
    assert of(keeps, chunk=2) == 10 + 200 + 2 * 104 + 10 * 104
    assert of(Sizes(1, state=104), chunk=4) == 2 * 4 * 104 + 10 * 104
    assert of(keeps, "vectorized") == 55 + 10 * 200 + 10 * 104 + 10 * 104
    assert of(holds) == of(holds, chunk=2) == 10 * 108
    large = Sizes(1, state=2**20)
    assert of(large, chunk=1, memory_mb=3) == 2 * 2**20 + 3 * 2**20
    assert of(plain, workers=3, chunk=2) == 0
    assert of(plain, "vectorized", on_gpu=True) == 55


@pytest.mark.quick_cases("scaffold-tff-*", "fedavg-vectorized-*")
@pytest.mark.parametrize(
    ("name", "runtime", "cure"),
    [
        ("adafed", "tff", "; fewer clients per round take less."),
        ("scaffold", "tff", "; --clients_per_chunk of less than 5 takes less."),
        ("fedavg", "vectorized", "; --clients_per_chunk of less than 5, or --runtime=per_client,"),
        ("fedavg", "native", "; --runtime=per_client, or fewer clients per round, take less."),
    ],
)
def test_what_surely_does_not_fit_is_refused_in_a_line(monkeypatch, name, runtime, cure):
    parts = assembly.assemble(experiment_flags.from_python(given(name, runtime)))
    least, require = [], memory.require
    monkeypatch.setattr(memory, "_UNASKED", 0)

    def noted(num_bytes, *words):
        least.append(num_bytes)
        require(num_bytes, *words)

    monkeypatch.setattr(memory, "require", noted)

    def with_free(free, **more):
        monkeypatch.setattr(memory, "available", lambda: free)
        run = experiment_flags.from_python({**given(name, runtime), **more}).run
        least_memory.require(parts.method, parts.model.model, parts.cohorts, run)

    with pytest.raises(HparamError) as error:
        with_free(0)
    text = str(error.value)
    assert text.startswith(f"A round of {name} with --runtime={runtime}, most of it for the ")
    assert " of 5 clients" in text and cure in text and "\n" not in text
    with pytest.raises(HparamError):
        with_free(least[0] - 1)
    # What would run is never refused.
    with_free(least[0])
    if "--clients_per_chunk" in cure:
        with_free(least[0] - 1, clients_per_chunk=1)
    if "--runtime=per_client" in cure:
        with_free(least[0] - 1, runtime="per_client")


def test_a_run_is_refused_before_its_first_round(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_UNASKED", 0)
    monkeypatch.setattr(memory, "available", lambda: 100)
    with pytest.raises(HparamError, match=r"^A round of scaffold with --runtime=tff, most of it"):
        in_python.run(progress=False, **given("scaffold", "tff", root_output_dir=str(tmp_path)))
    assert not list(tmp_path.rglob("metrics.csv"))


# Of each family: stateless, several means, client state, stacked vectors, several exchanges.
FAMILIES = ("fedavg", "fedda_sgdm", "scaffold", "adafed", "term")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("runtime", [*runtimes.ENGINE, "native"])
def test_a_round_takes_no_less(runtime, name, chunk):
    """Nor does it take ten times as much, or the formula would say nothing."""
    if chunk and (runtime, name) in (("native", name), ("vectorized", "scaffold")):
        pytest.skip("not in chunks, or long")
    clients = 12 if runtime == "native" else 24
    found = harness.alone(peaks.measure, peaks.Case(runtime, name, clients, chunk, hidden=3000))
    grown = found["peak"] - found["before"]
    assert found["least"] >= found["model"]
    assert found["least"] <= grown <= 40 * found["least"]


# The suite's own tasks.


@functools.cache
def model_bytes(task, model):
    """Returns the bytes of a task's model and of an example."""
    own = {} if model is None else {"model": model}
    loaded = tasks.load(task, use_synthetic_data=task != "synthetic", seed=0, **own)
    settings = {"seed": 0, "precision": "float32", "loss_scale": None}
    built = task_models.build(loaded, settings).model
    return memory.nbytes(built.initial_weights), memory.nbytes((built.x_spec, built.y_spec))


@functools.cache
def vectors(name):
    """Returns a method's sizes in multiples of the model's, of a model of 100,000 parameters."""
    model = tff_algos.from_keras(
        peaks.dense(127),
        loss=losses.sparse_softmax_cross_entropy,
        metrics={"accuracy": losses.sparse_softmax_cross_entropy},
    )
    rates = {"client_learning_rate": 0.1}
    if tff_algos.get(name).server_learning_rate is None:
        rates["server_learning_rate"] = 0.1
    process = tff_algos.build(name, model, num_clients=10, **rates)
    size = memory.nbytes(model.initial_weights)
    sizes = least_memory.sizes_of(Program(process.method, model), size)
    return [size / sizes.model for size in sizes]


def published():
    """Returns task, model, method, cohort and epochs of all rows that items run."""
    found = set()
    for item in items.all_items():
        for setup in item.setups.values():
            for row in setup.rows.values():
                settings = {**row.settings, **setup.points(row.name)[0]}
                arguments = [f"--flagfile={_REPO / row.flagfile}"]
                request = experiment_flags.parse(
                    [*arguments, *(f"--{k}={v}" for k, v in settings.items())]
                )
                run = request.run
                spec = tasks.registry.get(run["task"])
                known = spec.clients and spec.clients(request.task, False)
                plan = not tff_algos.get(run["algorithm"]).staged and request.plan(0)
                number = run["clients_per_round"]
                if plan and (number is None or plan.losses == "all"):
                    number = known.number if known else 500
                epochs = run["client_epochs_per_round"]
                key = run["task"], request.task.get("model"), run["algorithm"], number, epochs
                found.add(key)
    return sorted(found, key=repr)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_published_cohorts_fit_into_24_gib(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 24 * GIB - GIB)
    seen = published()
    assert len({task for task, *_ in seen}) >= 12, "nearly all of the suite's tasks"
    for task, model, name, number, epochs in seen:
        size, of_example = model_bytes(task, model)
        multiples = [1] * 4 if tff_algos.get(name).staged else vectors(name)
        sizes = Sizes(*(round(m * size) for m in multiples))
        # More than any task's clients have on average.
        data = np.full(number, 1000 * epochs * of_example)
        small = size <= 4 * MAX_VECTORIZED_PARAMETERS
        for runtime in runtimes.ENGINE if small else ("per_client",):
            settings = {"runtime": runtime, "clients_per_chunk": None, "workers": 0}
            settings["client_state_memory_mb"] = 1024
            shares = least_memory.of_round(sizes, data, settings, threads=16)
            assert least_memory.total(shares) <= memory.available(), (task, name, runtime, shares)
