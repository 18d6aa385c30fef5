"""Shows how a task's training examples are distributed over its clients: figure and table.

    python -m tasks.plot --task=synthetic --output=partition.png --synthetic_num_clients=30

The figure has three panels. The first shows the share of each label in a client's examples
(AdaFedAdam Fig. 6). The others are histograms of client sizes, and of the number of labels per
client (FedOpt Fig. 14). Labels are classes, tokens of text, tags or the classes of a mask. Tasks
with other targets have the second panel only, and a line says so.

The numbers behind the figure are written beside it as CSV: one row per client, with its number of
examples and its count of each label, up to 100 labels. The task's flags are those of
`run_experiment.py`; `--help` with `--task` shows them.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tff_suite import command_line

if __name__ == "__main__":
    command_line.begin()

# Read when TensorFlow is imported, which the tasks' modules do.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from matplotlib.figure import Figure

import tasks
from tasks.task import FederatedData
from tff_suite import figures, imports, parser, tables, writing
from tff_suite.hparams import MAX_SEED

# Up to this number of labels the table has a column for each.
_MAX_COLUMNS = 20
# Up to so many the CSV has.
_MAX_LABELS = 100
_FEWEST_BINS, _MOST_BINS = 10, 40
# Settings that the title's number of clients tells.
_NOT_TOLD = ("num_clients",)


class Partition(NamedTuple):
    """The distribution of examples over clients.

    Attributes:
      client_ids: Names of the clients shown.
      sizes: Examples of each, int64 `[N]`.
      labels: The labels that occur, ascending, int64 `[L]`; `None` if targets are not labels.
      counts: Examples (positions, for tokens) of each client with each label, int64 `[N, L]`, or
        `None`.
      note: How targets were interpreted, in one line; blank if each example has one label.
    """

    client_ids: list[str]
    sizes: np.ndarray
    labels: np.ndarray | None
    counts: np.ndarray | None
    note: str = ""

    def num_labels(self) -> np.ndarray:
        """Returns the number of different labels of each client, int64 `[N]`, if there are any."""
        assert self.counts is not None
        return np.sum(self.counts > 0, axis=1)


def _is_whole(y: np.ndarray) -> bool:
    if y.dtype.kind == "f":
        return bool(np.all(y == np.floor(y)) and np.all(np.abs(y) < 2**53))
    return y.dtype.kind in "biu"


def _ends_in_zeros(y: np.ndarray) -> bool:
    """Returns whether each row `[n, T]` has zeros only at its end, like padded tokens."""
    later = np.maximum.accumulate(y[:, ::-1] != 0, axis=1)[:, ::-1]
    return not np.any(later & (y == 0))


class _Labels(NamedTuple):
    """How targets are interpreted as labels.

    Attributes:
      of: Targets of a client → the labels of its examples, each as often as it occurs; `None` if
        targets are not labels.
      note: What is counted, in one line; blank if each example has one label.
    """

    of: Callable[[np.ndarray], np.ndarray] | None
    note: str = ""


_NO_LABELS = "Targets are not labels, so only the sizes of clients are shown."


def _reading(targets: Sequence[np.ndarray]) -> _Labels:
    """Determines from the targets of all clients how to interpret them, alike for all.

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
        return _Labels(lambda y: y[y != 0], "Each position of a row counts, except 0 at its end.")
    return _Labels(np.ravel, "Each position of the targets counts.")


def partition(data: FederatedData, clients: np.ndarray) -> Partition:
    """Counts the labels of clients.

    Labels have one of four forms:

    - Numbers `[n]` or `[n, 1]`, whole ones, also as floats.
    - Columns of ones and zeros `[n, L]`.
    - Tokens `[n, T]`, where zeros at the end of rows are padding.
    - Masks `[n, ..., L]`.

    Args:
      data: Clients' examples.
      clients: Indices of the clients to count, int `[N]`.
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
      most: The share of a label, in percent, at the end of the colour scale; by default the
        largest.
    """
    figure, axes = figures.panels(1 if shown.counts is None else 3, width=0.9)
    panels = list(axes[0])
    if shown.counts is not None and shown.labels is not None:
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


def _histogram(panel: Any, numbers: np.ndarray, words: str) -> None:
    """Draws how many clients have each number, with bins that hold whole numbers."""
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
    """Writes the counts, one row per client.

    Args:
      shown: The partition.
      path: Path of the file, in an existing folder.

    Raises:
      OSError: If the file cannot be written.
    """
    rows: list[Sequence[Any]] = [["client", "examples"]]
    rows += zip(shown.client_ids, shown.sizes, strict=True)
    if shown.counts is not None and shown.labels is not None and len(shown.labels) <= _MAX_LABELS:
        of_labels = [[f"label_{label}" for label in shown.labels], *shown.counts]
        rows = [[*row, *more] for row, more in zip(rows, of_labels, strict=True)]
    writing.write_atomically(path, writing.csv_text(rows).encode())


def table(shown: Partition, max_rows: int = 100) -> str:
    """Returns the counts as text: one row per client, then smallest, median and largest.

    Args:
      shown: The partition.
      max_rows: Clients have separate rows only up to this number of clients.
    """
    columns = {"examples": shown.sizes}
    if shown.counts is not None and shown.labels is not None:
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
    if shown.labels is not None:
        rows[-1][2] = f"{len(shown.labels)} different"
    align = ["left", *["right"] * len(columns)]
    return tables.markdown(rows, ["client", *columns], align)


def as_json(shown: Partition, files: Sequence[str]) -> str:
    """Returns the counts as JSON: `clients`, `labels`, `note` and `files`.

    Args:
      shown: The partition.
      files: Paths of the files written.
    """
    counts = shown.counts if shown.counts is not None else [None] * len(shown.sizes)
    clients = [
        {"client": name, "examples": int(size)}
        | ({} if of is None else {"counts": np.asarray(of).tolist()})
        for name, size, of in zip(shown.client_ids, shown.sizes, counts, strict=True)
    ]
    labels = None if shown.labels is None else shown.labels.tolist()
    content = {"clients": clients, "labels": labels, "note": shown.note, "files": list(files)}
    return writing.json_text(content)


def _parser(spec: tasks.TaskSpec | None) -> parser.Parser:
    """Returns the flags of the command, including those of the chosen task."""
    made = parser.Parser(__doc__)
    made.flag("task", help="Task to show.", required=True)
    made.flag("output", help="File to write, as PNG and as PDF.", required=True, path=True)
    made.flag("data_dir", help="Folder with the task's data files.", path=True)
    made.flag("seed", 0, "The run's --seed.", minimum=0, maximum=MAX_SEED)
    made.flag("use_synthetic_data", False, "Show data made by the task instead.")
    made.flag("max_clients", 1000, "Of more clients, show this many, drawn at random.", minimum=1)
    made.flag(
        "most",
        help="Percent at the top of the colour scale; set it to compare figures. Default: the "
        "largest share.",
        type=float,
        minimum=0,
        exclusive_minimum=True,
        maximum=100,
    )
    made.flag("import", help="Module to import first, which registers tasks.", form="repeated")
    made.flag("json", False, "Print what each client holds as JSON in place of a table.")
    if spec is not None:
        title = f"Task {spec.name}:"
        for hparam in spec.hparams:
            made.add(parser.Flag(hparam.flag_name(spec.name), hparam, section=title))
    return made


@command_line.reported
def main(arguments: list[str]) -> int:
    """Shows the partition that the arguments describe.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0; 2 for wrong flags; 1 for data that is missing or damaged.
    """
    modules = parser.values_of("import", arguments)
    name = next(iter(parser.values_of("task", arguments)[-1:]), None)
    imports.modules_of_ones_own(modules)
    spec = tasks.get(name) if name is not None else None
    options = _parser(spec).parse(arguments)
    assert name is not None and spec is not None  # `--task` is required.
    declared = {h.flag_name(name): h.name for h in spec.hparams}
    settings = {declared[f]: getattr(options, f) for f in declared if f in options.given}
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
    if not options.json:
        print(f"{title}\n\n{table(shown)}\n")
    if shown.note and not options.json:
        print(f"{shown.note}\n")
    paths = figures.save(draw(shown, f"{title}\n{told}".rstrip(), options.most), options.output)
    data = os.path.splitext(paths[0])[0] + ".csv"
    write_csv(shown, data)
    print(as_json(shown, [*paths, data]) if options.json else "\n".join([*paths, data]))
    return 0


if __name__ == "__main__":
    command_line.run(main)
