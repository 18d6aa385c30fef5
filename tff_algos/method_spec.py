"""What a method declares, as data that is known without importing TensorFlow."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tff_suite import hparams as hparams_lib
from tff_suite import palette, specs

# What the rounds of every method report besides the training metrics.
COUNTS = ("num_examples", "num_clients", "clients_dropped")


class RoundPlan(NamedTuple):
    """What the server requests from the clients in one round.

    Attributes:
      cohort: `sampled`: as many clients as the run samples; `all`: every client; `pooled`: one
        client that holds the examples of all.
      batches: `minibatch`: epochs of minibatches; `full_batch`: one batch of all local examples.
      local_steps: If set, exactly that many minibatch steps: local data is repeated or cut short.
      losses: `cohort`: only the cohort takes part; `all`: all other clients also take part, but
        only report their loss (`ClientData.participates` is 0 for them).
      recent: Clients of the last so many rounds that are not sampled in this one also take part,
        but without examples: they only hand over what they kept (`ClientData.participates` is 0).
      first_step: If set, all rounds share one endless series of a client's epochs, each in a
        different order. This round's minibatches start at this position of the series, counted from
        0. Otherwise every round starts a new epoch.
    """

    cohort: str = "sampled"
    batches: str = "minibatch"
    local_steps: int | None = None
    losses: str = "cohort"
    recent: int = 0
    first_step: int | None = None


@dataclasses.dataclass(frozen=True)
class Aggregated:
    """The method's mean that an aggregator may replace (`tff_algos.aggregation`).

    Attributes:
      what: Description of that mean.
      in_clear: What clients send beside it without privacy: vectors of the model's size that are
        averaged as usual, or numbers that reveal something about their updates, such as norms.
        Empty if nothing. A `By` if one of the method's own settings decides. Aggregators that keep
        clients' vectors private are refused if this is not empty.
      own_weights: How the method's own weights of that mean differ from `client_weighting`, so that
        an unweighted aggregator cannot replace it. `relative`: the largest weight of a round is 1.
        `unbounded`: weights have any size, so secure sums are refused as well. Empty if there are
        no own weights.
    """

    what: str = "the mean of the clients' updates x_k - x"
    in_clear: str | hparams_lib.By = ""
    own_weights: str = ""


class RoundCost(NamedTuple):
    """What a round costs a client, with the method's default settings.

    Attributes:
      gradients: Gradients that it computes per local step. Passes over its whole training set, for
        its loss or a full gradient, are not included.
      down: Vectors of the model's size that it receives.
      up: Vectors of the model's size that it sends.
    """

    gradients: int = 1
    down: int = 1
    up: int = 1


@dataclasses.dataclass(frozen=True)
class MethodSpec:
    """What is known of a method before anything is built.

    Attributes:
      name: Name of the method, the value of `--algorithm`.
      summary: One line for `--help` and the README's table.
      paper: Authors, title, arXiv number.
      display_name: The name as the paper writes it, for tables and figures; `name` if empty.
      look: Colour and line style in every figure, names of `tff_suite.palette`. Without one, a
        figure uses a look that its other lines leave free.
      builder: `module:function`, imported on first use, or the function itself; in the `SPEC` of a
        module (see `add_folder`) just the function's name. It is called with a
        `tff_algos.model.Model`, a `tff_algos.client.LocalTraining` and every declared setting by
        name, and returns a `tff_algos.method.Method`.
      hparams: The method's own settings; flags are `--<method>_<name>`.
      client_learning_rate: The method's default for `client_learning_rate`; `None` if the user must
        set it.
      server_learning_rate: The method's default for `server_learning_rate`; `None` if no value
        works without tuning, so that the user must set it.
      has_server_step: Whether the server takes its own step, so that it has a learning rate;
        otherwise the rate is 1.
      client_weighting: The method's default for `client_weighting`, as in its paper. `None` if the
        method's formulas determine the weights, so that the user must not set it.
      client_optimizers: The values of `client_optimizer` that the method supports, its default
        first; `None` is any, `sgd` by default. Methods that define the local step themselves
        support `sgd` only.
      plan: Settings (the resolved `hparams`), round number from 0, total rounds → `RoundPlan`.
        `None` is the common plan in every round.
      draws_clients: Whether the plan of any round has the cohort `sampled`; if not, the user must
        not set the number of clients to draw.
      keeps_client_optimizer: Whether clients may keep their optimizer's state between rounds
        (`client_optimizer_state=keep`).
      staged: Whether the builder returns a `tff_algos.driver.Driver` instead: a method of several
        processes, whose rounds depend on earlier findings. It has no `plan`, and cannot be
        vectorised over a cohort.
      aggregated: The mean that an aggregator may replace; if none, the reason, as the end of a
        sentence about the method.
      takes_server_optimizer: Whether the builder also takes `server_optimizer`: a TFF optimizer
        that replaces its server step, or `None`.
      needs_num_clients: Whether the builder also takes `num_clients`, the number of all training
        clients (N in the mathematics).
      needs_index: Whether `ClientData.index` enters the mathematics; only with `needs_num_clients`.
        A round then refuses a cohort with equal indices, or with an index outside 0 to N - 1.
      measures: Names of what its rounds report besides the training metrics and `COUNTS`; `None`
        if only a run can tell.
      version: Increased by every change that changes the method's numbers. Runs of another version
        are treated as different runs.
      history: For each version after the first, one line on what changed.
      known_problems: One line per problem with the method, and how to notice or avoid it.
      used_for: One line per user of the method and their purpose, with the source.
      cost: What a round costs a client; by default that of federated averaging.
    """

    name: str
    summary: str
    paper: str
    display_name: str = ""
    look: tuple[str, str] | None = None
    builder: str | Callable = "build"
    hparams: Sequence[hparams_lib.Hparam] = ()
    client_learning_rate: float | None = None
    server_learning_rate: float | None = None
    has_server_step: bool = True
    client_weighting: str | None = "examples"
    client_optimizers: Sequence[str] | None = None
    plan: Callable[[dict, int, int], RoundPlan] | None = None
    draws_clients: bool = True
    keeps_client_optimizer: bool = False
    needs_num_clients: bool = False
    needs_index: bool = False
    staged: bool = False
    takes_server_optimizer: bool = False
    aggregated: Aggregated | str = "does not declare a mean that one could take the place of"
    measures: Sequence[str] | None = None
    cost: RoundCost = RoundCost()
    version: int = 1
    history: Sequence[str] = ()
    known_problems: Sequence[str] = ()
    used_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        specs.check_history(self)
        if not self.display_name:
            object.__setattr__(self, "display_name", self.name)
        if self.look is not None:
            palette.check(self.name, self.look)

    def round_plan(self, settings: dict, round_index: int, total_rounds: int) -> RoundPlan:
        """Returns what the method requests from the clients in a round.

        Args:
          settings: The method's own settings, resolved.
          round_index: Round, from 0.
          total_rounds: Rounds of the whole run.
        """
        if self.plan is None:
            return RoundPlan()
        return self.plan(settings, round_index, total_rounds)

    def build_fn(self) -> Callable:
        """Imports and returns the builder."""
        return specs.function(self.builder)


def decay(name: str, default: float, help_text: str, source: str) -> hparams_lib.Hparam:
    """Returns the setting of a moving average's decay, or of a momentum: a number in [0, 1)."""
    return hparams_lib.Hparam(
        name, default, help_text, source, minimum=0.0, maximum=1.0, exclusive_maximum=True
    )


def common_setting(name: str, default: Any, help_text: str, **further: Any) -> hparams_lib.Hparam:
    """Returns a setting that all methods share; its flag has no prefix."""
    return hparams_lib.Hparam(name, default, help_text, flag=name, **further)
