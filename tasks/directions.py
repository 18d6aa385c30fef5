"""Whether higher values of a metric are better."""

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tasks.task import Task

# Spreads over clients, and times: lower values are better for every metric.
_SPREAD = re.compile(r"_(std(_[uwt])?|error_rsd(_[uwt])?|kl|angle)$|seconds|bytes")
# Words in the names of other metrics.
_LESS = re.compile(
    r"(^|_)(loss|errors?|r?mse|r?msle|mae|mape|smape|nll|crossentropy|cross_entropy|perplexity|ppl|"
    r"bpc|brier|ece|std|rsd|kl|angle|variance|deviation|deviance|divergence|distance|hinge|huber|"
    r"logcosh|log_cosh|poisson|wer|cer)(_|$)"
)
_MORE = re.compile(
    r"(^|_)(acc|accuracy|recall|precision|f1|auc|auroc|bleu|rouge|dice|iou|r2|top|fraction|"
    r"specificity|sensitivity|kappa|mcc|ndcg|mrr|psnr|ssim)(_|$)"
)
# scikit-learn's names of errors whose sign is changed.
_NEGATIVE = re.compile(r"^neg(ative)?_")


def is_spread(column: str) -> bool:
    """Returns whether a column of metrics.csv is a spread over clients, a time or a size."""
    return bool(_SPREAD.search(column))


def higher_is_better(column: str, task: "Task | None" = None) -> bool | None:
    """Returns whether higher values of a column of metrics.csv are better; `None` if unknown.

    Args:
      column: The column, such as `validation/accuracy`.
      task: The task, which says so of its primary metric. Without it, only names are known.
    """
    metric = column.rpartition("/")[2]
    if task is not None and metric == task.primary_metric:
        return bool(task.higher_is_better)
    bare = _NEGATIVE.sub("", metric)
    less = is_spread(column) or bool(_LESS.search(bare))
    if not less and not _MORE.search(bare):
        return None
    return less if bare != metric else not less
