"""What all tests share: few threads, quiet logs, the data folder and no process left behind."""

import fnmatch
import gc
import os
import pathlib
import signal
import sys
import uuid

import psutil
import pytest

from tff_suite import command_line, imports

_REPO = pathlib.Path(__file__).resolve().parent.parent
_RUN_ID = "FEDOPT_TEST_RUN"
# Begun first: else one process would be left with them in the end, and the other without work.
_LONGEST = ("test_every_task.py", "test_workers.py", "test_vectorized.py", "test_plots.py")

# What is started in the background ignores Ctrl-C and the end of its terminal, and so would all
# that the tests start.
for _signal, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_signal) == signal.SIG_IGN:
        signal.signal(_signal, _handler)

# Read once, when TensorFlow is imported, which a test file may do before any fixture runs. The
# commands set the same level. Below it, TensorFlow prints an error where it finds no GPU.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# What TFDS keeps for whoever runs the tests is no part of them.
os.environ["TFDS_DATA_DIR"] = os.path.join(os.devnull, "no", "such", "folder")
if "PYTEST_XDIST_WORKER" in os.environ:
    # Every test process would otherwise start a thread a core, for each of TensorFlow's pools.
    _threads = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    for _name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"):
        os.environ.setdefault(_name, str(_threads))
    # Most test files need it.
    imports.import_tensorflow()

# What is imported stays: the garbage collector would walk through it for seconds.
gc.disable()

# A method of one's own joins the cases of ours, whichever files are collected.
import examples.clipped_fedavg  # noqa: F401


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: part of what CI runs, not of the quick tier")
    config.addinivalue_line("markers", "long: part of the full product, not of what CI runs")
    config.addinivalue_line(
        "markers", "quick_cases(*patterns): the others of a test's cases are `long`; as in a shell"
    )
    # Of pytest-xdist, for where it is switched off.
    config.addinivalue_line("markers", "xdist_group(name): run in one process with its group")
    os.environ.setdefault(_RUN_ID, uuid.uuid4().hex)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's own, which reads the marks, is one of these.
def pytest_collection_modifyitems(config, items):
    """Sorts a test's cases into the tiers, and a file's tests into one process.

    With --dist=loadgroup, a file's tests run in one process, save those of a group of theirs. So
    fixtures of a module are made once, and what a file's tests keep serves all of them.
    """
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    has_quick = {}
    for item in items:
        mark = item.get_closest_marker("quick_cases")
        if mark is not None:
            quick = any(fnmatch.fnmatchcase(item.callspec.id, pattern) for pattern in mark.args)
            if not quick:
                item.add_marker(pytest.mark.long)
            has_quick[item.function] = quick or has_quick.get(item.function, False)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
    misnamed = [function.__name__ for function, any_quick in has_quick.items() if not any_quick]
    if misnamed and not any("::" in argument for argument in config.args):
        raise pytest.UsageError(f"quick_cases names no case of {', '.join(misnamed)}")


def pytest_collection_finish():
    # A run collects garbage before its first round, which would walk all that is imported by now:
    # half a second, some five hundred times.
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config):
    # TFF's worker outlives its parent and holds its pipes: a reader of ours would wait for ever.
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    for process in psutil.process_iter(["name"]):
        try:
            if (
                process.info["name"] == "worker_binary"
                and process.environ().get(_RUN_ID) == os.environ[_RUN_ID]
            ):
                process.kill()
        except psutil.Error:
            continue


@pytest.fixture(autouse=True)
def signal_handlers_stay():
    """A test puts signal handlers back: a command's own could end the process in a later test."""
    before = {number: signal.getsignal(number) for number in command_line.SIGNALS}
    yield
    after = {number: signal.getsignal(number) for number in command_line.SIGNALS}
    command_line.restore(before)
    assert after == before


@pytest.fixture(scope="session", autouse=True)
def no_comparison_of_tensors():
    """No module of the suite may put `==` or `!=` between tensors, in any test.

    In TFF's graphs they mean identity; `tf.equal` is safe wherever it runs.
    """
    if "tensorflow" not in sys.modules:
        yield
        return
    tensor = sys.modules["tensorflow"].Tensor
    operators = {name: getattr(tensor, name) for name in ("__eq__", "__ne__")}
    folders = tuple(
        f"{_REPO / name}{os.sep}" for name in ("reproduction", "simulation", "tasks", "tff_algos")
    )

    def guarded(name):
        def compare(self, other):
            caller = sys._getframe(1).f_code
            if other is not None and caller.co_filename.startswith(folders):
                raise AssertionError(
                    f"{caller.co_filename}, {caller.co_name}: tensors are compared by tf.equal or "
                    "tf.not_equal here"
                )
            return operators[name](self, other)

        return compare

    for name in operators:
        setattr(tensor, name, guarded(name))
    yield
    for name, operator in operators.items():
        setattr(tensor, name, operator)


_traced = {}


@pytest.fixture
def traced_once(monkeypatch):
    """Experiments in this process share what is traced of a method, most of so short a run.

    That a process of its own comes to the same is for tests that start one.
    """
    import tff_algos
    from simulation import assembly

    build = assembly._build_process

    def build_once(request, model, train):
        names = ("task", "seed", "data_dir", "use_synthetic_data", "initial_weights")
        key = repr(
            (
                tff_algos.get(request.run["algorithm"]),
                [request.run[name] for name in names],
                (request.task, request.training, request.method),
                len(train.client_ids),
            )
        )
        if key not in _traced:
            _traced[key] = build(request, model, train)
        return _traced[key]

    monkeypatch.setattr(assembly, "_build_process", build_once)


@pytest.fixture(scope="session")
def data_dir() -> pathlib.Path:
    """The folder of real data: FEDOPT_DATA_DIR, or shared/data beside the repository."""
    named = os.environ.get("FEDOPT_DATA_DIR")
    folder = pathlib.Path(named) if named else _REPO.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is not a folder (set FEDOPT_DATA_DIR to one)")
    return folder


@pytest.fixture(scope="session")
def unpacked_dir(data_dir) -> pathlib.Path:
    """The folder of sets in their publishers' form: FEDOPT_UNPACKED_DIR, or that of `data_dir`.

    Tests do not unpack by themselves: it takes a minute and half a gigabyte.
    """
    folder = pathlib.Path(os.environ.get("FEDOPT_UNPACKED_DIR", data_dir))
    if not (folder / "cifar-10-batches-py").is_dir():
        pytest.skip(
            f"{folder} has no cifar-10-batches-py: run `python3 {data_dir}/unpack.py DIR` and set "
            "FEDOPT_UNPACKED_DIR=DIR"
        )
    return folder
