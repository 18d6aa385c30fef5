"""The needs of a set-up that was not run: its data, and an estimate of its hours.

Hours are for runs one after the other. If an item gives seconds per round on one core (`seconds`),
the estimate uses them. Otherwise it multiplies the examples per round by the training seconds per
example of the nearest measured workload, on the machine of that measurement. Methods that compute
more than FedAvg take longer than this estimate.
"""

import functools
import glob
import os
import pathlib
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import tasks
from reproduction.items import REPO, Row, Setup
from simulation import experiment_flags
from simulation.experiment_flags import Request
from tasks import DataFiles
from tasks.formats import remote, tfds
from tasks.task import DataError
from tff_suite import parser
from tff_suite.hparams import HparamError, Settings

MACHINE = "two cores of an AMD EPYC"


class Measured(NamedTuple):
    """Seconds per example in local training.

    Attributes:
      workload: Description of the model.
      seconds: Seconds per example on `MACHINE`.
    """

    workload: str
    seconds: float


# Source: docs/performance.md, "Evaluation". For the MLP and ResNet-18 docs/tasks.md: 2.5 s for
# 135,000 images, 18 s for 1,000. For the autoencoder a round of 1,109 images on MNIST's writers,
# 0.26 s.
_CNN = Measured("the EMNIST CNN", 273e-6)
_TAGS = Measured("the tag regression", 60e-6)
_AUTOENCODER = Measured("the autoencoder", 233e-6)
_LSTM = Measured("two LSTM layers over 80 characters", 2651e-6)
_MLP = Measured("Fashion-MNIST's MLP", 19e-6)
_SMALL = Measured("softmax regression", 0.8e-6)
_RESNET = Measured("ResNet-18 on 24 x 24 pixels", 18e-3)


def measured(task: str, settings: dict) -> Measured:
    """Returns the measured workload that is most similar to a task's model.

    Args:
      task: Name of the task.
      settings: Its settings.
    """
    model = settings.get("model")
    if model in ("resnet18", "vgg11", "vgg11_dense") or task == "clothing1m":
        # The time of convolutions is proportional to the number of pixels.
        pixels = settings.get("crop") or (224 if task == "clothing1m" else 24)
        return _RESNET._replace(seconds=_RESNET.seconds * (pixels / 24) ** 2)
    words = task == "stackoverflow_word" or settings.get("kind") == "word"
    if words or task in ("shakespeare_character", "sent140"):
        return _LSTM
    if task in ("stackoverflow_tag", "stackexchange"):
        return _TAGS
    if task == "emnist_autoencoder":
        return _AUTOENCODER
    if task == "synthetic":
        return _SMALL
    if task == "fashion_mnist" or model == "mlp":
        return _MLP
    return _CNN


class RowNeeds(NamedTuple):
    """The estimated time of a row's round.

    Attributes:
      seconds: Seconds per round on `MACHINE`.
      workload: The measured workload behind the estimate.
    """

    seconds: float
    workload: str


def of_row(setup: Setup, row: Row) -> RowNeeds | None:
    """Estimates a row's time per round by the nearest measured workload.

    Returns:
      The estimate; `None` if the row's flag file is incomplete, or its task is not the suite's.
    """
    # A flag file may leave out flags that the grid sets. The first point stands for all: the time
    # does not depend on the point.
    settings = {**setup.points(row.name)[0], **row.on_top}
    return _of_flags(row.flagfile, tuple(settings.items()))


@functools.cache
def _of_flags(flagfile, settings):
    flags = [f"--{flag}={value}" for flag, value in settings]
    try:
        request = experiment_flags.parse([f"--flagfile={REPO / flagfile}", *flags])
    except HparamError:
        return None
    run, name = request.run, request.run["task"]
    if not tasks.get(name).data and name != "synthetic":
        return None
    nearest, examples = measured(name, dict(request.task)), _examples(request, run, name)
    return None if examples is None else RowNeeds(examples * nearest.seconds, nearest.workload)


def _examples(request: Request, run: Settings, name: str) -> float | None:
    """Returns the examples that clients train on in a round; `None` if only the data tell."""
    clients_of = tasks.get(name).clients
    known = None if clients_of is None else clients_of(dict(request.task), False)
    data = _read_by(request.in_force)
    if known is not None:
        clients = known.number
    elif data is not None:
        clients = data.clients
    else:
        return None
    in_all = 100 * clients if data is None else data.examples
    of_client = in_all / max(clients, 1)
    if run["max_elements_per_client"]:
        of_client = min(of_client, run["max_elements_per_client"])
    plan = request.plan(0)
    if plan.local_steps is not None:
        of_client = plan.local_steps * run["client_batch_size"]
    elif run["client_epochs_distribution"] == "uniform_1_3":
        of_client *= 2
    else:
        of_client *= run["client_epochs_per_round"]
    return of_client * min(run["clients_per_round"] or clients, clients)


def tasks_of(setup: Setup) -> list[str]:
    """Returns the tasks of a set-up's rows, each once."""
    named = (_flags(row.flagfile).get("task") for row in setup.rows.values())
    return list(dict.fromkeys(filter(None, named)))


@functools.cache
def _flags(flagfile: str) -> Mapping[str, str]:
    """Returns the flags of a flag file that are written `--name=value`, the last of each name."""
    flags = parser.expand_flagfiles([f"--flagfile={REPO / flagfile}"])
    return dict(flag.removeprefix("--").split("=", 1) for flag in flags if "=" in flag)


def _read_by(flags: Mapping[str, Any], stand_in: bool = False) -> DataFiles | None:
    """Returns the data that runs with these flags read; `None` if no files, or not our task."""
    if flags.get("task") not in tasks.names():
        return None
    spec = tasks.get(flags["task"])
    settings = {h.name: flags.get(h.flag_name(spec.name)) for h in spec.hparams}
    return spec.data_with(settings, stand_in)


def data(setup: Setup) -> list[DataFiles]:
    """Returns the data that a set-up reads, each once."""
    flags = [{**_flags(row.flagfile), **row.on_top} for row in setup.rows.values()]
    found = [_read_by(of_row, bool(setup.stand_in)) for of_row in flags]
    return list(dict.fromkeys(filter(None, found)))


@functools.cache
def paths_at(address: str) -> frozenset[str]:
    """Returns the paths of all files and folders below an fsspec address; cached.

    Raises:
      tasks.task.DataError: If it cannot be read, or has no file.
    """
    paths = set()
    for name in remote.names(address, "--data_dir"):
        path = pathlib.PurePosixPath(name)
        paths.update(map(str, [path, *path.parents]))
    return frozenset(paths - {"."})


def found(needed: DataFiles, data_dir: str | None = None) -> str | None:
    """Returns a path at which data seem to lie, `None` if there is none; files are not opened.

    Raises:
      tasks.task.DataError: If `data_dir` is an address that cannot be read, or a run would refuse
        the files there.
    """
    if needed.beside and not (data_dir and _first(data_dir, needed.beside)):
        return None
    if data_dir:
        path = _first(data_dir, needed.files)
    else:
        path = _first(os.path.expanduser("~"), needed.cached)
    return path or (needed.tfds_set and _found_of_tfds(needed, data_dir))


def _found_of_tfds(needed: DataFiles, data_dir: str | None) -> str | None:
    """Returns TFDS's folder if a run would read it; uses the same functions as a run."""
    path = None
    if data_dir and remote.is_address(data_dir):
        path = _first(data_dir, [posixpath.join(needed.tfds_set.folder, "dataset_info.json")])
        path = path and posixpath.dirname(path)
    elif data_dir:
        path = tfds.find(needed.tfds_set, data_dir)
    when = ("beside", "always") if data_dir else ("alone", "always")
    return path or (tfds.find_in_cache(needed.tfds_set) if needed.tfds_cache in when else None)


def _first(folder: str, patterns: Iterable[str]) -> str | None:
    found = (path for pattern in patterns for path in sorted(_matching(folder, pattern)))
    # Ignore remains of interrupted downloads.
    whole = (path for path in found if not path.endswith((".part", ".part.etag")))
    return next(whole, None)


def _matching(folder: str, pattern: str) -> list[str]:
    if not remote.is_address(folder):
        return glob.glob(os.path.join(glob.escape(folder), pattern))
    # Anchored at the root; otherwise the pattern would also match the ends of longer paths.
    return [
        posixpath.join(folder, path)
        for path in paths_at(folder)
        if pathlib.PurePosixPath("/", path).match(f"/{pattern}")
    ]


def told_data(setup: Setup, data_dir: str | None = None) -> str:
    """Describes the data that a set-up needs, and whether a run would find them.

    Raises:
      tasks.task.DataError: If `data_dir` is an address that cannot be read.
    """
    parts = []
    for needed in data(setup):
        if data_dir and remote.is_address(data_dir):
            paths_at(data_dir)  # Raises if the address cannot be read.
        path, refused = None, None
        try:
            path = found(needed, data_dir)
        except DataError as e:
            refused = str(e)
        if refused:
            where = f"refused: {refused}"
        elif path:
            where = f"found: {path}"
        elif data_dir:
            where = f"missing in {data_dir}: {needed.source}"
        else:
            where = f"missing here: {needed.source}, and set --data_dir"
        parts.append(f"{needed.name} ({where})")
    return "; ".join(parts)


def hours(setup: Setup) -> tuple[float, str] | None:
    """Returns the hours of a set-up's protocol, one run after the other, and their source.

    Returns:
      Hours and source; `None` if unknown. The source is `item` for core-hours that the item gives,
      measured or estimated. Otherwise it names the nearest measured workloads, and the hours are
      those of `MACHINE`.
    """
    total, by = 0.0, {}
    for name, row in setup.rows.items():
        seconds = setup.seconds.get(name, setup.seconds.get("*"))
        if seconds is None:
            nearest = of_row(setup, row)
            if nearest is None:
                return None
            seconds = nearest.seconds
            by[nearest.workload] = None
        total += runs_of_row(setup, name) * row.settings.get("total_rounds", setup.rounds) * seconds
    return (total / 3600, ", ".join(by) or "item") if total else None


def runs_of_row(setup: Setup, row: str) -> int:
    """Returns a row's number of runs: its grid on the selection's seeds, then the other seeds."""
    points = len(setup.points(row))
    tried = len(setup.selection.get("seeds", setup.seeds)) if points > 1 else 0
    return points * tried + len(setup.seeds) - min(tried, len(setup.seeds))


def told_hours(setup: Setup) -> str:
    """Describes the hours of a set-up's protocol."""
    known = hours(setup)
    if known is None:
        return "an unknown number of hours"
    number, by = known
    told = f"about {number:,.{0 if number >= 10 else 1}f}"
    if by == "item":
        return f"{told} core-hours"
    return f"{told} hours of {MACHINE}, estimated from the most similar measured workload ({by})"


def told(setup: Setup) -> str:
    """Describes data and hours of a set-up for the pages, the same on every machine."""
    names = [f"needs {needed.name}" for needed in data(setup)]
    return "; ".join([*names, told_hours(setup)])


def page_of_data() -> str:
    """Returns the source of each task's data, as lines of Markdown."""
    names = {}
    for task in tasks.names():
        needed = tasks.get(task).data_with({})
        if needed is not None:
            names.setdefault(needed, []).append(f"`{task}`")
    return "\n".join(
        f"- {', '.join(some)}: {needed.name}; {needed.source}." for needed, some in names.items()
    )
