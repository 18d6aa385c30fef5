"""Estimates clients' accuracies from accuracies per class, free of noise from small test sets.

    python -m reproduction.by_class results/mine --output=by_class.csv

Suppose that the model is right on 43 % of each client's 20 test examples on average. By chance
alone, a client's accuracy then has a standard deviation of 11 points. So the worst 5 % of clients
lie far below 43 %, even if all clients are alike.

Here the accuracy of client k is Σ_c p_kc a_c instead. p_kc is the share of class c in the client's
training examples; clients without any are left out. a_c is the accuracy of the run's final model on
all central test examples of class c. This is valid if clients differ only in their classes, e.g. if
a partition is drawn by labels. For methods with a personal model per client it describes the shared
model.

The statistics over clients, see docs/metrics.md, go to FILE.csv as fractions, one line per run.
Their means over seeds are printed.
"""

import os
from collections.abc import Mapping

from tff_suite import command_line, parser

PARSER = parser.Parser(__doc__)
PARSER.positional("run", "folder of a run, or of runs", many=True)
PARSER.flag("output", help="CSV file to write.", required=True, path=True)
PARSER.flag("data_dir", help="Folder of the data. Default: the run's.", path=True)
PARSER.flag("json", False, "Print the statistics of each run as JSON in place of their means.")

if __name__ == "__main__":
    command_line.begin(PARSER)

import numpy as np
import pandas as pd

import tasks
from reproduction import run_folders
from simulation.errors import RunError
from simulation.measures import fairness
from tasks.task import Task
from tff_suite import writing

# Batch size for the test examples.
_BATCH = 500


def shares_of_classes(task: Task, num_classes: int) -> np.ndarray:
    """Returns the share of each class in each client's training examples, float64 `[N, C]`.

    Args:
      task: A task whose training targets are class numbers.
      num_classes: C.
    """
    counts = [
        np.bincount(task.train.examples(index).y, minlength=num_classes)
        for index in range(len(task.train.client_ids))
    ]
    return np.array([count / max(1, count.sum()) for count in counts])


def accuracy_by_class(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Returns the accuracy on each class, float64 `[C]`; NaN for classes without examples.

    Args:
      predicted: Class numbers, `[n]`.
      labels: True class numbers, `[n]`.
      num_classes: C.
    """
    of_class = [predicted[labels == number] == number for number in range(num_classes)]
    return np.array([right.mean() if len(right) else np.nan for right in of_class])


def of_run(run: run_folders.RunFolder, data_dir: str | None = None) -> Mapping[str, float]:
    """Returns the statistics over clients of their estimated accuracies.

    Args:
      run: A run that has ended. Its task has central test examples with one class each.
      data_dir: Folder of the data; `None` for the one that the run used.

    Returns:
      The unweighted statistics of `fairness.summarize`, without `_u`.

    Raises:
      DataError: If data is missing.
      RunError: If the run has no final model, or its task lacks such test examples.
    """
    from simulation.records import models  # Takes seconds to import.

    spec = tasks.get(run.flags["task"])
    settings = {h.name: run.flags[f"{spec.name}_{h.name}"] for h in spec.hparams}
    task = tasks.load(
        spec.name,
        data_dir=data_dir or run.flags["data_dir"],
        seed=run.flags["seed"],
        use_synthetic_data=run.flags["use_synthetic_data"],
        **{name: value for name, value in settings.items() if value is not None},
    )
    test = task.central_test
    if test is None or test.y.ndim != 1 or test.y.dtype.kind != "i" or not len(test.y):
        raise RunError(f"{run.folder}: {spec.name} has no central test examples of one class each.")
    if not os.path.isdir(os.path.join(run.folder, models.FOLDER)):
        raise RunError(f"{run.folder} has no final model: the run has not ended.")
    seed = run.flags["seed"]
    model = models.beginning_with(task, seed, run.folder).keras_model(seed)
    outputs = [
        np.asarray(model(test.x[start : start + _BATCH], training=False))
        for start in range(0, len(test.y), _BATCH)
    ]
    scores = np.concatenate(outputs)
    # If a score is NaN, no class counts as predicted.
    predicted = np.where(np.isnan(scores).any(axis=-1), -1, scores.argmax(axis=-1))
    by_class = accuracy_by_class(predicted, test.y, scores.shape[-1])
    shares = shares_of_classes(task, scores.shape[-1])
    # A class without test examples (NaN) only affects clients that have this class.
    accuracy = np.where(shares > 0, shares * by_class, 0.0).sum(axis=1)
    # A client without training examples has no share of any class, so it is left out.
    found = fairness.summarize(accuracy, shares.sum(axis=1))
    return {n.removesuffix("_u"): value for n, value in found.items() if n.endswith("_u")}


@command_line.reported
def main(arguments: list[str]) -> int:
    """Writes the statistics of runs; see the module's docstring.

    Args:
      arguments: Command line without the program's name.

    Returns:
      The exit code: 0, or 1 if a run lacks the necessary data.
    """
    options = PARSER.parse(arguments)
    runs = run_folders.find_runs(options.run)
    rows = [
        {"method": label, "seed": run.flags["seed"], **of_run(run, options.data_dir)}
        for run, label in zip(runs, run_folders.labels(runs), strict=True)
    ]
    table = pd.DataFrame(rows)
    table.to_csv(options.output, index=False, float_format="%.7g")
    if options.json:
        print(writing.json_text(table.to_dict(orient="records")))
        return 0
    means = table.groupby("method", sort=False).mean().drop(columns="seed")
    print((100 * means[["avg", "std", "worst05", "best05"]]).round(2).to_string())
    return 0


if __name__ == "__main__":
    command_line.run(main)
