"""Shows how a task's training examples lie with its clients: figure and table.

    python -m tasks.plot --task=fashion_mnist --data_dir=DIR --output=partition.png
        [--seed=0] [--max_clients=1000] [--fashion_mnist_alpha=0.05 and other flags of the task]
        [--most=100] [--import=MODULE]

The figure has three panels: the share of each label in a client's examples (AdaFedAdam Fig. 6),
how many clients are how large, and how many hold how many labels (FedOpt Fig. 14). Labels are
classes, tokens of text, tags or the classes of a mask; tasks whose targets are none of them have
the second only, and a line says so.
What it shows lies beside it as CSV: a row a client, with its examples and, of up to 100 labels,
how many it has of each. `--import` brings in tasks from a user's own packages.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tff_suite import command_line

if __name__ == "__main__":
    command_line.begin()

# Read when TensorFlow is imported, which the tasks' modules do.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tabulate
from matplotlib.figure import Figure

import tasks
from tasks.task import FederatedData
from tff_suite import figures, imports, writing
from tff_suite.hparams import MAX_SEED, HparamError

# Up to this number of labels the table has a column for each.
_MAX_COLUMNS = 20
# Up to so many the CSV has.
_MAX_LABELS = 100
_FEWEST_BINS, _MOST_BINS = 10, 40
# Settings that the title's number of clients tells.
_NOT_TOLD = ("num_clients",)


class Partition(NamedTuple):
    """What clients hold.

    Attributes:
      client_ids: Names of the clients shown.
      sizes: Examples of each, int64 `[N]`.
      labels: The labels that occur, ascending, int64 `[L]`; `None` if targets are no labels.
      counts: Examples (positions, for tokens) of each client with each label, int64 `[N, L]`, or
        `None`.
      note: How targets were read, in one line; blank where each example has one label.
    """

    client_ids: list[str]
    sizes: np.ndarray
    labels: np.ndarray | None
    counts: np.ndarray | None
    note: str = ""

    def num_labels(self) -> np.ndarray:
        """Returns the number of different labels of each client, int64 `[N]`."""
        return np.sum(self.counts > 0, axis=1)


def _is_whole(y: np.ndarray) -> bool:
    if y.dtype.kind == "f":
        return bool(np.all(y == np.floor(y)) and np.all(np.abs(y) < 2**53))
    return y.dtype.kind in "biu"


def _ends_in_zeros(y: np.ndarray) -> bool:
    """Returns whether each row `[n, T]` has zeros at its end only, as padded tokens have."""
    later = np.maximum.accumulate(y[:, ::-1] != 0, axis=1)[:, ::-1]
    return not np.any(later & (y == 0))


class _Labels(NamedTuple):
    """How targets are read as labels.

    Attributes:
      of: Targets of a client → the labels of its examples, each as often as it occurs; `None` if
        targets are no labels.
      note: What is counted, in one line; blank where each example has one label.
    """

    of: Callable[[np.ndarray], np.ndarray] | None
    note: str = ""


_NO_LABELS = "Targets are no labels, so only the sizes of clients are shown."


def _reading(targets: Sequence[np.ndarray]) -> _Labels:
    """Decides by the targets of all clients, so that all are read alike.

    Args:
      targets: The targets of each client that has examples, `[n, ...]`.
    """
    rank = targets[0].ndim
    if not all(y.ndim == rank and _is_whole(y) for y in targets):
        return _Labels(None, _NO_LABELS)
    wide = rank > 1 and targets[0].shape[-1] > 1
    if rank == 1 or (rank == 2 and not wide):
        return _Labels(np.ravel)
    ones = all(np.all(y <= 1) and np.all(y >= 0) for y in targets)
    if targets[0].dtype.kind == "f" and not ones:
        return _Labels(None, _NO_LABELS)
    are_flags = wide and ones
    if are_flags and rank == 2:
        return _Labels(lambda y: np.nonzero(y)[1], "A label is the column of a 1 in the targets.")
    if are_flags and all(np.all(y.sum(axis=-1) == 1) for y in targets):
        note = "A label is the place of the 1 in the targets' last dimension."
        return _Labels(lambda y: np.ravel(y.argmax(axis=-1)), note)
    if rank == 2 and all(map(_ends_in_zeros, targets)):
        return _Labels(lambda y: y[y != 0], "Each position of a row counts; 0 at its end is none.")
    return _Labels(np.ravel, "Each position of the targets counts.")


def partition(data: FederatedData, clients: np.ndarray) -> Partition:
    """Counts the labels of clients.

    Labels are numbers `[n]` or `[n, 1]` (whole ones, also as floats), columns of ones and zeros
    `[n, L]`, tokens `[n, T]`, where zeros at the end of rows are padding, or masks `[n, ..., L]`.

    Args:
      data: Clients' examples.
      clients: Which clients to count, int `[N]`.
    """
    targets, sizes = [], np.asarray(data.sizes)[clients]
    ids = [data.client_ids[k] for k in clients]
    for k in clients:
        targets.append(np.asarray(data.examples(int(k)).y))
        if len(targets[-1]) and not _is_whole(targets[-1]):
            break  # Further clients, which may be large, make no difference.
    read = _reading([y for y in targets if len(y)] or targets[:1])
    if read.of is None:
        return Partition(ids, sizes, None, None, read.note)
    of_clients = [read.of(y) if len(y) else y[:0].ravel() for y in targets]
    labels = np.unique(np.concatenate(of_clients)).astype(np.int64)
    counts = np.zeros((len(ids), len(labels)), np.int64)
    for k, own in enumerate(of_clients):
        np.add.at(counts[k], np.searchsorted(labels, own), 1)
    return Partition(ids, sizes, labels, counts, read.note)


@figures.look()
def draw(shown: Partition, title: str | None = None, most: float | None = None) -> Figure:
    """Draws a partition.

    Args:
      shown: The partition.
      title: Title of the figure.
      most: The share of a label, in percent, at which colours end; by default the largest.
    """
    figure, axes = figures.panels(1 if shown.counts is None else 3, width=0.9)
    panels = list(axes[0])
    if shown.counts is not None:
        held = np.maximum(shown.counts.sum(axis=1, keepdims=True), 1)
        # Rows are labels; clients lie side by side, as many as there are.
        image = panels[0].imshow(
            100 * (shown.counts / held).T,
            aspect="auto",
            interpolation="nearest",
            vmin=0,
            vmax=most,
            cmap="magma_r",
        )
        panels[0].grid(False)
        panels[0].set(xlabel="client, by its place", ylabel="label")
        figures.whole_numbers(panels[0].xaxis)
        if len(shown.labels) <= _MAX_COLUMNS:
            panels[0].set_yticks(range(len(shown.labels)), shown.labels)
        else:
            panels[0].set_ylabel("label, by its place")
            figures.whole_numbers(panels[0].yaxis)
        figure.colorbar(image, ax=panels[0], label="share of a client's examples (%)")
        _histogram(panels[2], shown.num_labels(), "different labels of a client")
    _histogram(panels[min(1, len(panels) - 1)], shown.sizes, "examples of a client")
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figures.fit(figure)


def _histogram(panel, numbers, words):
    """Draws how many clients have which number, with bins that hold whole numbers."""
    low, high = int(np.min(numbers)), int(np.max(numbers))
    # Of few clients, most of many bins would be empty.
    most = int(np.clip(len(numbers), _FEWEST_BINS, _MOST_BINS))
    wide = -(-(high - low + 1) // most)
    panel.hist(numbers, np.arange(low, high + wide + 1, wide) - 0.5, color=figures.colour(0))
    panel.set(xlabel=words, ylabel="clients")
    # A single number would be a bar as wide as the panel.
    panel.set_xlim(min(low - 0.5, low - 2 * wide), max(high + 0.5, high + 2 * wide))
    figures.whole_numbers(panel.xaxis)
    figures.whole_numbers(panel.yaxis)


def write_csv(shown: Partition, path: str) -> None:
    """Writes what each client holds, a row a client.

    Args:
      shown: The partition.
      path: Path of the file; its folder is there.

    Raises:
      OSError: If the file cannot be written.
    """
    labels = shown.labels if shown.labels is not None else ()
    labels = labels if len(labels) <= _MAX_LABELS else ()
    rows = [["client", "examples", *(f"label_{label}" for label in labels)]]
    for k, (name, size) in enumerate(zip(shown.client_ids, shown.sizes, strict=True)):
        rows.append([name, size, *(shown.counts[k] if len(labels) else ())])
    writing.write_atomically(path, writing.csv_text(rows).encode())


def table(shown: Partition, max_rows: int = 100) -> str:
    """Returns the counts as text: a row a client, then smallest, median and largest.

    Args:
      shown: The partition.
      max_rows: Up to this number of clients have a row of their own.
    """
    columns = {"examples": shown.sizes}
    if shown.counts is not None:
        columns["labels"] = shown.num_labels()
        if len(shown.labels) <= _MAX_COLUMNS:
            columns |= {str(v): c for v, c in zip(shown.labels, shown.counts.T, strict=True)}
    values = np.stack(list(columns.values()), axis=1)
    # A line break in a name would break the row.
    names = [
        "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
        for name in shown.client_ids
    ]
    rows = [[name, *row] for name, row in zip(names, values.tolist(), strict=True)]
    rows = rows if len(rows) <= max_rows else []
    for name, of in (("smallest", np.min), ("median", np.median), ("largest", np.max)):
        rows.append([name, *(f"{v:.10g}" for v in of(values, axis=0))])
    rows.append(["sum", *values.sum(axis=0).tolist()])
    if shown.counts is not None:
        rows[-1][2] = f"{len(shown.labels)} different"
    return tabulate.tabulate(
        rows,
        ["client", *columns],
        tablefmt="github",
        disable_numparse=True,
        colalign=["left", *["right"] * len(columns)],
    )


def _parser(spec: tasks.TaskSpec | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.plot",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--task", required=True, help=f"one of {', '.join(tasks.names())}")
    # A shell leaves the tilde in `--flag=~/x`.
    path = {"type": os.path.expanduser}
    parser.add_argument("--data_dir", help="folder with the task's data files", **path)
    parser.add_argument("--seed", type=int, default=0, help="the run's --seed; default: 0")
    parser.add_argument(
        "--use_synthetic_data", action="store_true", help="show data made by the task instead"
    )
    parser.add_argument("--output", required=True, help="file to write, as PNG and as PDF", **path)
    parser.add_argument(
        "--max_clients",
        type=int,
        default=1000,
        help="of more clients, this number is drawn at random and shown; default: 1000",
    )
    parser.add_argument(
        "--most",
        type=float,
        help="share of a label, in percent, at which colours end, so that figures can be compared; "
        "default: the largest",
    )
    parser.add_argument(
        "--import",
        action="append",
        metavar="MODULE",
        help="module to import first, which registers tasks; may be given several times",
    )
    for hparam in spec.hparams if spec else ():
        text = f"{hparam.help} (default: {hparam.describe_default()})".replace("%", "%%")
        parser.add_argument(f"--{hparam.flag_name(spec.name)}", help=text)
    return parser


def _value(hparam, text, flag):
    """Reads a setting of the task as `run_experiment.py` does."""
    if hparam.type is bool:
        read = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
        return hparam.check(read, flag)
    try:
        return hparam.check(hparam.type(text), flag)
    except ValueError as error:
        if isinstance(error, HparamError):
            raise
        return hparam.check(text, flag)


@command_line.reported
def main(arguments: list[str]) -> int:
    """Shows the partition that the arguments describe.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0; 2 for wrong flags; 1 for data that is missing or damaged.
    """
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--task")
    first.add_argument("--import", action="append", default=[], dest="modules")
    known = first.parse_known_args(arguments)[0]
    name = known.task
    imports.modules_of_ones_own(known.modules)
    spec = tasks.get(name) if name is not None else None
    options = _parser(spec).parse_args(arguments)
    if options.max_clients < 1:
        raise HparamError(f"--max_clients={options.max_clients} must be >= 1.")
    if options.most is not None and not 0 < options.most <= 100:
        raise HparamError(f"--most={options.most:g} must be above 0 and at most 100.")
    if not 0 <= options.seed <= MAX_SEED:
        raise HparamError(f"--seed={options.seed} must be in [0, {MAX_SEED}].")
    settings = {}
    for hparam in spec.hparams:
        flag = hparam.flag_name(name)
        text = getattr(options, flag)
        if text is not None:
            settings[hparam.name] = _value(hparam, text, f"--{flag}")
    task = tasks.load(
        name,
        data_dir=options.data_dir,
        seed=options.seed,
        use_synthetic_data=options.use_synthetic_data,
        **settings,
    )
    number = len(task.train.client_ids)
    clients = np.arange(number)
    if number > options.max_clients:
        drawn = np.random.default_rng(options.seed).permutation(number)
        clients = np.sort(drawn[: options.max_clients])
    shown = partition(task.train, clients)
    part = "" if len(clients) == number else f", {len(clients):,} of them shown"
    title = f"{name}: {number:,} clients, {int(np.sum(task.train.sizes)):,} examples{part}"
    told = ", ".join(f"{k} = {v}" for k, v in settings.items() if k not in _NOT_TOLD)
    print(f"{title}\n\n{table(shown)}\n")
    if shown.note:
        print(f"{shown.note}\n")
    paths = figures.save(draw(shown, f"{title}\n{told}".rstrip(), options.most), options.output)
    data = os.path.splitext(paths[0])[0] + ".csv"
    write_csv(shown, data)
    print("\n".join([*paths, data]))
    return 0


if __name__ == "__main__":
    command_line.run(main)
