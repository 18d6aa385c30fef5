"""Workers do rounds to the bit as one process does, whoever of them is lost."""

import contextlib
import dataclasses
import functools
import os
import signal
import threading
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from tff_suite import imports

pytestmark = pytest.mark.slow

imports.import_tensorflow()

import tasks
import tff_algos
from simulation import (
    assembly,
    cluster,
    experiment_flags,
    runtimes,
)
from simulation.engine import pool as engine_pool
from simulation.engine import scheduler
from simulation.errors import NoWorkersError, RunError
from simulation.measures import evaluation, evaluations, training_losses
from simulation.records import client_states, metrics_csv
from simulation.rounds import staged
from simulation.workers import placement, worker
from simulation.workers import pool as pool_lib
from tasks.task import DataError
from tests import metrics_page
from tests.simulation import toy_extension  # noqa: F401
from tests.simulation.engine.test_scheduler import assert_same_bits, leaves
from tests.tff_algos import cases
from tff_algos import process as process_lib
from tff_suite.hparams import HparamError

ROUNDS = 4
METHODS = [n for n in tff_algos.names() if not tff_algos.get(n).staged]


@pytest.fixture(autouse=True)
def small_chunks_of_tests(monkeypatch):
    """The 36 examples that clients are tested on make six chunks."""
    monkeypatch.setattr(evaluation, "_MIN_CHUNK", 6)
    monkeypatch.setattr(evaluation, "_MAX_CHUNK", 6)


@pytest.fixture(scope="module")
def ray():
    with cluster.connected(None, num_cpus=4) as module:
        yield module


class Actors:
    """Workers that tests share: to start one takes longer than all of a test's rounds."""

    def __init__(self, ray):
        self._ray, self._actors, self._begun = ray, [], None

    def begin(self, request, number):
        """Returns what gives these workers, which have begun with a run, one after the other."""
        remote = self._ray.remote(worker.Worker).options(num_cpus=0.5)
        while len(self._actors) < number:
            self._actors.append(remote.remote(os.getcwd(), 0.5, False))
        references = [a.begin.remote(request, {}, own_node(self._ray)) for a in self._actors]
        self._ray.get(references)
        return lambda: iter(zip(self._actors, references, strict=True))

    def forget(self, actor):
        self._actors.remove(actor)


def own_node(ray):
    return ray.get_runtime_context().get_node_id()


@pytest.fixture(scope="module")
def actors(ray):
    return Actors(ray)


def request_of(name, runtime="per_client", **more):
    """Returns a run of a method's first case on six clients, one of whom comes in a chunk."""
    training, own = {}, {}
    shared = {h.name for h in tff_algos.TRAINING_HPARAMS}
    settings = cases.CASES[name][0].settings if name in cases.CASES else {}
    for key, value in {"client_learning_rate": 0.3, **settings}.items():
        (training if key in shared else own)[key] = value
    spec = tff_algos.get(name)
    flags = {h.flag_name(name): own[h.name] for h in spec.hparams if h.name in own}
    if spec.server_learning_rate is None:
        training.setdefault("server_learning_rate", 0.1)
    if spec.draws_clients:
        more.setdefault("clients_per_round", 5)
    given = dict(
        task="toy",
        algorithm=name,
        total_rounds=ROUNDS,
        client_batch_size=3,
        clients_per_chunk=1,
        runtime=runtime,
        **more,
    )
    request = experiment_flags.from_python({**given, **training, **flags})
    run = {**request.run, "import": "tests.simulation.toy_extension"}
    return dataclasses.replace(request, run=run)


class Run:
    """The rounds of a request."""

    def __init__(self, request):
        self.request, self.parts = request, assembly.assemble(request)
        self.programs = self.parts.method.programs()

    def alone(self):
        return engine_pool.InProcess(
            engine_pool.schedulers(self.programs, self.parts.method.data, self.request.run, 2)
        )

    def pool(self, ray, make, number, timeout=60.0, said=None):
        return pool_lib.RayPool(
            ray,
            self.programs,
            make,
            number,
            steps=self.parts.cohorts.steps,
            room=lambda: number,
            timeout=timeout,
            warn=(said if said is not None else []).append,
        )

    def rounds(self, pools):
        """Returns the leaves of all states, metrics and client states; a pool for each round."""
        method, found, kept, state = self.parts.method, [], {}, None
        with method.cohorts(in_engine=True) as cohort_of_round:
            for r, pool in enumerate(pools):
                process = method.in_engine(self.programs, pool)
                state = process.initialize() if state is None else state
                cohort = cohort_of_round(r, state)
                given = None
                if method.client_state is not None:
                    given = [kept.get(k, method.client_state) for k in cohort.ids]
                output = process.next(state, cohort, given)
                if given:
                    kept.update(zip(cohort.ids, output.client_states, strict=True))
                state = output.state
                found.append((state, dict(output.metrics)))
        return leaves([found, sorted(kept.items())])


def same_again(shared):
    """Returns a maker of workers that gives those that are there, and then none that come."""
    given = shared()
    return lambda: next(given)


@pytest.mark.long
@pytest.mark.parametrize("most", [2, 4])
@pytest.mark.parametrize("runtime", ["per_client", "vectorized"])
@pytest.mark.parametrize("name", METHODS)
def test_any_number_of_workers_gives_the_same_bits(name, runtime, most, ray, actors):
    """1, 2 and 4 workers, and one that takes over from two."""
    request = request_of(name, runtime)
    run = Run(request)
    alone = run.rounds([run.alone()] * ROUNDS)
    shared = actors.begin(request, most)
    pools = {n: run.pool(ray, same_again(shared), n) for n in (1, 2, 4) if n <= most}
    assert_same_bits(run.rounds([pools[2], pools[2], pools[1], pools[most]]), alone)
    for pool in pools.values() if most == 4 else ():
        assert_same_bits(run.rounds([pool] * ROUNDS), alone)


class Disturbed:
    """A pool of which a worker is killed while a phase is under way."""

    def __init__(self, pool, at_round, at_phase):
        self.pool, self._at, self.killed = pool, (at_round, at_phase), False

    def moved(self):
        return self.pool.moved()

    def work(self, cohort, phase, sent, states_of):
        for answer in self.pool.work(cohort, phase, sent, states_of):
            yield answer
            if not self.killed and (cohort.round_index, phase) >= self._at:
                self.killed = True
                os.kill(self.pool.ready()[0].pid, signal.SIGKILL)


# With several exchanges, it stands in CI for the one above, too.
@pytest.mark.quick_cases("fedfa")
@pytest.mark.parametrize("name", METHODS)
def test_a_worker_that_is_killed_in_a_round_leaves_no_trace(name, ray, actors):
    """What it held for later phases is made again by others; one line tells."""
    request = request_of(name)
    run = Run(request)
    alone = run.rounds([run.alone()] * ROUNDS)
    shared = list(actors.begin(request, 3)())
    given, said = iter(shared), []
    never = types.SimpleNamespace(remote=lambda *_: None)

    def make():
        # The third comes for the one that is lost.
        return next(given, None) or (types.SimpleNamespace(work=never), ray.put(None))

    pool = run.pool(ray, make, 2, said=said)
    pool.wait_for_all()
    disturbed = Disturbed(pool, 1, len(run.programs[""].phases) - 1)
    found = run.rounds([disturbed] * ROUNDS)
    actors.forget(shared[0][0])
    assert_same_bits(found, alone)
    assert disturbed.killed and [s for s in said if "was lost" in s] == said and len(said) == 1
    assert shared[2][0] in [m.actor for m in pool._members]


@pytest.mark.long
@pytest.mark.parametrize("aggregation", ["fedavg", "adafed"])
def test_a_method_of_several_processes_in_chunks_and_on_workers(aggregation, ray, actors):
    """One chunk has the bits of TFF's computations; workers leave no trace, nor does one lost."""
    stages = dict(iterations=2, stage1_clients=3, stage2_rounds=2, confidence=0.3, clean_level=0.5)
    own = {f"fedcorr_{name}": value for name, value in stages.items()}
    request = request_of("fedcorr", fedcorr_aggregation=aggregation, **own)
    run, rounds = Run(request), 2 * 2 + 2 + 2

    def found(pools=None, size=1):
        settings = {**request.run, "clients_per_chunk": size}
        method = staged.Stages(run.parts.method.process, run.parts.method.clients, settings)
        outputs, state = [], None
        with runtimes.installed("tff", 2), method.cohorts(pools is not None) as cohort_of_round:
            for r in range(rounds):
                process = method.through_tff()
                if pools is not None:
                    process = method.in_engine(run.programs, pools[r])
                state = process.initialize() if state is None else state
                output = process.next(state, cohort_of_round(r, state))
                state = output.state
                outputs.append((state, dict(output.metrics)))
        return outputs

    whole = found()
    assert sum(metrics["labels_corrected"] for _, metrics in whole) > 0
    assert_same_bits(leaves(found([run.alone()] * rounds, None)), leaves(whole))
    alone = leaves(found([run.alone()] * rounds))
    for a, b in zip(alone, leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    shared = list(actors.begin(request, 3)())
    one, two = (run.pool(ray, same_again(lambda: iter(shared)), n) for n in (1, 2))
    assert_same_bits(leaves(found([one, two] * (rounds // 2))), alone)
    given, said = iter(shared), []
    # The third comes for the one that is lost.
    pool = run.pool(ray, lambda: next(given), 2, said=said)
    pool.wait_for_all()
    disturbed = Disturbed(pool, 5, 0)
    assert_same_bits(leaves(found([disturbed] * rounds)), alone)
    actors.forget(shared[0][0])
    assert disturbed.killed and len(said) == 1 and "was lost" in said[0]


@pytest.mark.long
@pytest.mark.parametrize("name", ["fedadam", "ditto"])
def test_workers_share_evaluations(name, ray, actors, tmp_path, monkeypatch):
    """Of the server's model, of clients' own, on test and training examples; a worker is killed."""
    # Two clients' models at a time.
    monkeypatch.setattr(pool_lib, "_PERSONAL_BYTES", 100)
    asked = dict(evaluate_all_local_data=True, track_clients="extremes", evaluate_classes=True)
    request = request_of(name, **asked)
    run = Run(request)
    method = run.parts.method.process.method
    weights = run.parts.model.model.initial_weights
    states = client_states.ClientStates(
        str(tmp_path / "states"),
        process_lib.initial_client_state(method) if method.client_state else (),
        1 << 20,
    )
    if method.client_state:
        # Not all have models of their own.
        rng = np.random.default_rng(0)
        for client in run.parts.train.client_ids[:4]:
            own = tf.nest.map_structure(
                lambda a: rng.normal(size=a.shape).astype(np.float32), states.read([client])[0].kept
            )
            states.write({client: process_lib.ClientState(np.int32(1), own)}, 1)

    def evaluated(spread):
        measured = evaluations.Evaluations(
            run.parts.task,
            run.parts.train,
            request.run,
            run.parts.model,
            run.parts.method,
            spread,
        )
        others = [w + 0.1 for w in weights]
        improved = measured.improvement(weights, others, np.array([4, 1, 2]))
        return measured(weights, None, states), improved

    (alone, improved), called = evaluated(None), []
    shared, said = list(actors.begin(request, 3)()), []
    given = iter(shared)
    pool = run.pool(ray, lambda: next(given, None) or (None, ray.put(None)), 2, said=said)
    pool.wait_for_all()
    plain, each = pool.evaluate, pool.evaluate_each
    pool.evaluate = lambda name, *rest: called.append(name) or plain(name, *rest)
    pool.evaluate_each = lambda name, *rest: called.append(f"each {name}") or each(name, *rest)
    for kill in (False, True):
        if kill:
            os.kill(pool.ready()[0].pid, signal.SIGKILL)
            actors.forget(shared[0][0])
        found, found_improved = evaluated(pool)
        assert found.columns == alone.columns and found_improved == improved
        assert_same_bits(leaves(found.clients), leaves(alone.clients))
    assert len(said) == 1 and "was lost" in said[0]
    assert any(column.startswith(metrics_csv.TRACKED) for column in alone.columns)
    names = {n if isinstance(n, str) else n[0] for n in called}
    own = ("each clients", "each train") if name == "ditto" else ("clients", "train")
    assert names >= {training_losses.NAME, *own}, names
    states.close()


@pytest.mark.long
def test_what_a_round_moves_is_told(ray, actors):
    """SCAFFOLD in five chunks: x and c go down, means come up as subtrees, states both ways."""
    request = request_of("scaffold")
    run = Run(request)
    pool = run.pool(ray, same_again(actors.begin(request, 2)), 2)
    run.rounds([pool] * ROUNDS)
    moved, model = pool.moved(), sum(w.nbytes for w in run.parts.model.model.initial_weights)
    down, up = run.programs[""].sent_bytes()
    assert moved["workers"] == 2 and moved["down_mb"] == down / 1e6
    assert 2 * up <= moved["up_mb"] * 1e6 <= 6 * up
    # c_k and the number of visits, of five clients.
    assert moved["states_mb"] * 1e6 == 5 * 2 * (model + 4)
    assert metrics_page.undefined(f"time/{name}" for name in moved) == []
    assert run.alone().moved() == {}


def test_without_workers_a_round_ends_in_time_with_a_line(ray, actors):
    request = request_of("fedadam")
    run = Run(request)
    # Not a function of this file, which Ray's processes would import, and TensorFlow with it.
    never_begins = ray.remote(lambda: time.sleep(60)).options(num_cpus=0)

    def make():
        return types.SimpleNamespace(), never_begins.remote()

    pool = run.pool(ray, make, 2, timeout=0.5)
    with pytest.raises(NoWorkersError, match=r"^There was no worker for 0.5 seconds"):
        run.rounds([pool])


def test_a_worker_of_another_version_is_refused(ray):
    run = Run(request_of("fedadam"))
    facts = worker.Facts("n", "elsewhere", 1, {**worker.versions(), "numpy": "0.1"})
    pool = run.pool(ray, lambda: (None, ray.put(facts)), 1)
    with pytest.raises(RunError, match=r"elsewhere has another version .* numpy 0.1, not"):
        pool.wait_for_all()


def test_a_worker_that_cannot_begin_for_its_other_version_is_refused_for_that(ray):
    """Code of another version may fail before it comes to say which it is."""
    versions = {**worker.versions(), "the suite's files": "0123456789ab"}

    class Older:
        def facts(self):
            return worker.Facts("n", "elsewhere", 1, versions)

        def begin(self):
            raise TypeError("begin() takes 3 arguments")

    actor = ray.remote(Older).options(num_cpus=0).remote()
    pool = Run(request_of("fedadam")).pool(ray, lambda: (actor, actor.begin.remote()), 1)
    with pytest.raises(RunError, match=r"another version .* the suite's files 0123456789ab, not"):
        pool.wait_for_all()


@pytest.mark.long
def test_a_machine_without_the_working_directory_is_one_line(ray, monkeypatch):
    from simulation.workers import start

    request = request_of("fedadam", workers=1, cpus_per_worker=0.5)
    monkeypatch.setattr(os, "getcwd", lambda: "/not/there")
    pool = Run(request).pool(ray, start._maker(ray, request, {}), 1)
    with pytest.raises(RunError, match=r"^worker 0 cannot start: .*: '/not/there'; all mach") as e:
        pool.wait_for_all()
    assert "\n" not in str(e.value)


@pytest.mark.long
@pytest.mark.parametrize("when", ["during their start", "over the same 1 clients"])
def test_workers_that_are_lost_again_and_again_end_the_run(when, ray):
    """A client that fits no memory would otherwise kill every worker that comes."""

    class Doomed:
        def begin(self, facts):
            return facts if when.startswith("over") else os._exit(1)

        def work(self, order):
            os._exit(1)

    facts = worker.Facts("n", "here", 1, worker.versions())
    remote, made = ray.remote(Doomed).options(num_cpus=0), []

    def make():
        made.append(remote.remote())
        return made[-1], made[-1].begin.remote(facts)

    run = Run(request_of("fedadam"))
    with pytest.raises(RunError, match=f"^3 workers were lost {when}.* memory than a") as error:
        run.rounds([run.pool(ray, make, 1)])
    assert "\n" not in str(error.value) and len(made) == 3


@pytest.mark.long
def test_a_worker_without_the_data_says_so(ray, actors, tmp_path):
    """The driver has had them; where the worker is there is no such folder."""
    request = request_of("fedadam")
    run = Run(request)
    (actor, _), *_ = actors.begin(request, 1)()
    elsewhere = experiment_flags.from_python(
        dict(
            task="fashion_mnist",
            algorithm="fedadam",
            total_rounds=1,
            clients_per_round=4,
            client_batch_size=3,
            client_learning_rate=0.1,
            server_learning_rate=0.1,
            data_dir=str(tmp_path / "not_there"),
            runtime="tff",
        )
    )
    begun = actor.begin.remote(elsewhere, {}, own_node(ray))
    with pytest.raises(DataError, match=r"^worker 0: .*not_there") as error:
        run.pool(ray, lambda: (actor, begun), 1).wait_for_all()
    assert "\n" not in str(error.value)


@pytest.mark.long
def test_data_of_another_machine_must_be_the_runs(ray, actors):
    request = request_of("fedadam")
    run = Run(request)
    (actor, _), *_ = actors.begin(request, 1)()
    begun = actor.begin.remote(request, {"client_ids": "others"}, "another node")
    with pytest.raises(RunError, match=r"^worker 0: its data or code differ from the run's"):
        run.pool(ray, lambda: (actor, begun), 1).wait_for_all()


def refused(**settings):
    with pytest.raises((HparamError, RunError)) as error:
        request = request_of("fedadam", **settings)
        with contextlib.ExitStack() as stack:
            from simulation.workers import start

            start.pool(request, {}, None, None, say=print, warn=print, stack=stack)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_bad_settings_are_one_line_each(monkeypatch):
    assert "use --clients_per_chunk=1" in refused(workers=6)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert "need 4 cores, but there are 2" in refused(workers=4)
    assert refused(cpus_per_worker=0.5) == "--cpus_per_worker is not used without --workers."
    given = dict(task="toy", algorithm="fedadam", total_rounds=1, clients_per_round=4)
    given |= dict(client_batch_size=3, client_learning_rate=0.1, server_learning_rate=0.1)
    with pytest.raises(HparamError, match=r"--clients_per_chunk is not set; .*=1, for example"):
        experiment_flags.from_python({**given, "workers": 1})
    with pytest.raises(HparamError, match="native"):
        experiment_flags.from_python({**given, "clients_per_chunk": 2, "runtime": "native"})


def test_no_machine_with_room_for_a_worker_is_one_line(ray, monkeypatch):
    monkeypatch.setattr(cluster, "connected", lambda address: contextlib.nullcontext(ray))
    found = refused(workers=1, gpus_per_worker=0.5)
    assert found == "No machine has 1 CPUs and 0.5 GPUs for a worker."


@pytest.mark.long
def test_a_task_and_a_model_given_in_python_go_to_the_workers(ray, actors):
    """Also where other processes could not find their functions by name."""
    task = tasks.load("toy", data_dir=None, seed=3, use_synthetic_data=False, dropout=0.0)
    model_fn, scale = task.keras_model_fn, 0.5

    def scaled_model(seed):
        model = model_fn(seed)
        model.set_weights([scale * w for w in model.get_weights()])
        return model

    given = dict(algorithm="fedadam", total_rounds=ROUNDS, clients_per_round=5, runtime="tff")
    given |= dict(client_batch_size=3, client_learning_rate=0.3, server_learning_rate=0.1)
    own = dataclasses.replace(task, name="of_ones_own")
    given |= dict(clients_per_chunk=1, workers=2)
    request = experiment_flags.from_python(given, own, scaled_model)
    run = Run(request)
    alone = run.rounds([run.alone()] * ROUNDS)
    pool = run.pool(ray, same_again(actors.begin(request, 2)), 2)
    assert_same_bits(run.rounds([pool] * ROUNDS), alone)

    keras_model = scaled_model(0)
    request = experiment_flags.from_python(given, own, keras_model)
    run = Run(request)
    pool = run.pool(ray, same_again(actors.begin(request, 2)), 2)
    assert_same_bits(run.rounds([pool] * ROUNDS), alone)


@pytest.mark.long
def test_workers_of_a_machine_share_the_arrays_of_a_task_given_in_python(ray, tmp_path):
    """They lie in its object store once: also a map of a file, and whatever holds them."""
    from simulation.workers import start

    np.save(tmp_path / "x.npy", np.arange(1 << 20, dtype=np.uint8))
    held = {"array": np.load(tmp_path / "x.npy"), "map": np.load(tmp_path / "x.npy", mmap_mode="r")}
    request = dataclasses.replace(request_of("fedadam"), objects={"task": held})
    sent = start._sent(ray, request)
    shares = ray.remote(_shares_arrays).options(num_cpus=0)
    assert ray.get(shares.remote(sent)) == {"array": (True, 255), "map": (True, 255)}


def _shares_arrays(request):
    # Whatever Ray has not copied cannot be written to.
    held = request.objects["task"]
    return {name: (not a.flags.writeable, int(a[255])) for name, a in held.items()}


def test_what_cannot_be_sent_to_workers_is_refused_with_the_cure(ray):
    from simulation.workers import start

    lock = threading.Lock()
    request = dataclasses.replace(request_of("fedadam"), objects={"model": lambda seed: lock})
    with pytest.raises(HparamError, match=r"cannot send the model given in Python .*--import") as e:
        start._sent(ray, request)
    assert "\n" not in str(e.value)


def test_workers_import_where_methods_and_tasks_of_ones_own_are():
    from simulation.workers import start

    settings = {**request_of("fedadam").run, "import": None}
    assert start._modules(settings) == ["tests.simulation.toy_extension"]
    assert start._modules({**settings, "task": "synthetic"}) == []
    assert start._modules({**settings, "task": "synthetic", "import": "a,b"}) == ["a", "b"]


def test_workers_import_where_functions_that_were_registered_themselves_are(monkeypatch):
    from simulation.workers import start

    def load(**_):
        raise AssertionError

    spec = tasks.TaskSpec("here", "", loader=functools.partial(load, a=1))
    monkeypatch.setitem(tasks.registry._SPECS, "here", spec)
    settings = {**request_of("fedadam").run, "import": None, "task": "here"}
    assert start._modules(settings) == [__name__]
    load.__module__ = "__main__"
    with pytest.raises(HparamError, match=r"cannot find the task here.*separate module"):
        start._modules(settings)


def test_shares_are_neighbours_and_go_by_predicted_time():
    assert placement.shares([1.0] * 8, [1.0, 1.0]) == [range(4), range(4, 8)]
    assert placement.shares([1.0] * 8, [3.0, 1.0]) == [range(6), range(6, 8)]
    assert placement.shares([7.0, 1, 1, 1, 1, 1, 1, 1], [1.0, 1.0]) == [range(1), range(1, 8)]
    assert placement.shares([], [1.0, 1.0]) == [range(0), range(0)]
    rng = np.random.default_rng(0)
    for _ in range(100):
        costs = rng.exponential(size=rng.integers(1, 40))
        speeds = rng.uniform(0.5, 2, rng.integers(1, 9))
        found = placement.shares(costs, speeds)
        assert [i for places in found for i in places] == list(range(len(costs)))
        times = [sum(costs[i] for i in p) / s for p, s in zip(found, speeds, strict=True)]
        # Nobody has more than a fair share and the chunks at its two ends.
        assert max(times) <= costs.sum() / speeds.sum() + max(costs) / min(speeds) + 1e-9


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_prediction_finds_how_time_goes_with_steps(power):
    rng = np.random.default_rng(1)
    prediction = placement.Prediction()
    for _ in range(50):
        steps = rng.integers(1, 100, 8)
        prediction.learn(steps, 0.02 * np.sum(steps**power) * rng.uniform(0.95, 1.05))
    steps = np.array([3, 50, 7])
    assert prediction.seconds(steps) == pytest.approx(0.02 * np.sum(steps**power), rel=0.05)


def test_totals_do_not_depend_on_who_brings_what():
    """Any grouping of chunks, in any order, comes to the same bits."""
    primitive = types.SimpleNamespace(number=5, kind="sum")
    program = types.SimpleNamespace(phases=[types.SimpleNamespace(aggregates=[primitive])])
    rng = np.random.default_rng(2)
    for number in (1, 2, 3, 5, 8, 13):
        values = rng.normal(size=(number, 100)).astype(np.float32)
        expected = None
        for _ in range(10):
            totals = scheduler.Totals(program, 0, number)
            order = rng.permutation(number)
            for group in np.array_split(order, rng.integers(1, number + 1)):
                nodes = {(0, int(i)): {5: [values[i]]} for i in group}
                totals.add(scheduler.combine(nodes, program, 0, number))
            (found,) = totals.whole()[5]
            expected = found if expected is None else expected
            assert found.tobytes() == expected.tobytes()
        np.testing.assert_allclose(expected, values.sum(0), rtol=1e-4, atol=1e-5)
