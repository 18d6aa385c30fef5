"""Settings that several data sets share, and facts on their clients that need no data."""

from collections.abc import Callable, Sequence
from typing import Any

from tasks.registry import Clients
from tff_suite.hparams import MAX_SEED, By, Hparam, Settings

# More than any set has training examples.
MAX_CLIENTS = 1_000_000
# Of concentrations of Dirichlet distributions. NumPy draws from one of 1e-12 for hours, and shares
# with one of 1e308 are all 0.
CONCENTRATIONS: dict[str, Any] = {"minimum": 1e-5, "maximum": 1e12}


def generated(settings: Settings, synthetic: bool) -> Clients:
    """Returns `Clients` for generated data, as many as `num_clients` requests."""
    return Clients.numbered(settings["num_clients"])


def at_most(published: int, made: int) -> Callable[[Settings, bool], Clients]:
    """Returns `Clients` of a published set: `published`, or `made` with `use_synthetic_data`."""

    def clients(settings: Settings, synthetic: bool) -> Clients:
        number = made if synthetic else published
        return Clients(min(number, settings.get("num_clients") or number))

    return clients


def init(default: str, source: str) -> Hparam:
    """Returns the setting of initial weights, with its default and the source of that."""
    return Hparam(
        name="init",
        default=default,
        help=(
            "Initial weights: `torch` draws weights and biases uniformly from ±1/sqrt(fan_in); "
            "`keras` draws weights by Glorot's uniform rule and starts biases at 0."
        ),
        source=source,
        choices=("torch", "keras"),
    )


def text_init(default: str, source: str, lstm_kernel: str = "Glorot's uniform rule") -> Hparam:
    """Returns the setting of initial weights of a model of text.

    Args:
      default: The default.
      source: Its source.
      lstm_kernel: Description of how Keras's scheme draws the LSTM's input weights.
    """
    return Hparam(
        name="init",
        default=default,
        help=(
            "Initial weights by PyTorch's rules (`torch`) or Keras's (`keras`), with LSTM input "
            f"weights by {lstm_kernel}. docs/tasks.md has both."
        ),
        source=source,
        choices=("torch", "keras"),
    )


def partition_seed(what: str, default: By | None = None) -> Hparam:
    """Returns the setting of a seed that defaults to the run's seed.

    Args:
      what: Description of what it is the seed of.
      default: The other settings with which the seed is not used, if any.
    """
    return Hparam(
        name="partition_seed",
        default=default,
        type=int,
        help=f"Seed of {what}; by default the run's --seed.",
        source="choice",
        minimum=0,
        maximum=MAX_SEED,
    )


def with_partition_seed(hparams: Sequence[Hparam], settings: Settings, seed: int) -> dict[str, Any]:
    """Returns the settings, with the run's seed as `partition_seed` if that is used but not set."""
    unset = any(
        h.name == "partition_seed" and h.is_used(settings) and settings[h.name] is None
        for h in hparams
    )
    return {**settings, "partition_seed": seed} if unset else dict(settings)


MIN_SHARE = Hparam(
    name="min_share",
    default=By("partition", {"dirichlet": 0.01}),
    help=(
        "Proportions are redrawn until every client holds this share of the average number of "
        "examples, and two examples at least. With 0 nothing is redrawn, so clients may be empty."
    ),
    source="AdaFedAdam's released partitioner (1 % of the average)",
    minimum=0,
    maximum=1,
    exclusive_maximum=True,
)
