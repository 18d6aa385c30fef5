"""FedAdamW: AdamW on the clients, from a shared second moment and towards the last global update.

Liu, Shang, Liu, Tian, Liu, Liu, Zhu, Lin: "FedAdamW: A Communication-Efficient Optimizer with
Convergence and Generalization Guarantees for Federated Large Models", AAAI 2026, arXiv 2510.27486.

  symbol   argument              default       from
  η        client_learning_rate  -             tuned
  β_1      beta1                 0.9           the released code
  β_2      beta2                 0.999         the released code
  ε        epsilon               1e-8          the released code
  λ        weight_decay          0.01          the released code
  α        alpha                 0.5           the released code
  -        second_moment         block_means   the paper
  -        bias_steps            separate      the paper
  -        decay_sign            adamw         the paper's words (see 3)
  K        counted_steps         unset         the paper: the steps of a client, alike for all
  η_g      server_learning_rate  1             the mean of the clients' models
  1/S      client_weighting      uniform       the paper

    server → x, v̄, d, T ; v̄ = d = T = 0 at first
    client:  x_k ← x ; m ← 0 ; v ← v̄ ; step j = 1, 2, .. with g = ∇f(x_k; b) and t = T + j:
             m ← β_1 m + (1 - β_1) g ; v ← β_2 v + (1 - β_2) g²
             m̂ = m / (1 - β_1^j) ; v̂ = v / (1 - β_2^t)
             x_k ← x_k - η (m̂ / (√v̂ + ε) + α d + λ x_k)
             v̄_k = the mean of v over each block
    server:  Δ = mean(x_k - x) ; x ← x + η_g Δ ; v̄ ← mean v̄_k ; d ← -Δ / (K η) ; T ← T + K

d is the paper's Δ_G, a mean of gradient-like directions; through it x repeats α times its last
update. A block is one tensor of weights, and v̄ has one number per block. The server sends two
vectors of the model's size, and clients send one.

Deviations from the paper:
  1. The paper's text could not be read when this was written. The rule comes from a published
     summary of its algorithm and was compared with the authors' code; the numbers are that code's.
  2. The paper partitions a network into blocks by the structure of its Hessian. Here a block is a
     tensor of weights, as in the authors' code for language models. Their code for images sends all
     of v instead: `second_moment=full`, which takes one vector more each way.
  3. The algorithm prints the decay as - λ x_k within the bracket, with which weights would grow by
     1 + η λ per step. The paper calls it weight decay, and the code subtracts η λ x_k, as AdamW
     does; so does the default. `decay_sign=printed` has the printed sign.
  4. The code also corrects m by t, although m starts at 0 in every round: `bias_steps=common`.
  5. In the paper all clients take K steps. By default, K is the mean number of steps of the round's
     clients, with the weights of Δ. The code uses a fixed number, the epochs times the batches of a
     client of mean size; to do so, set `counted_steps`.
  6. The code adds -η α d after AdamW's step. That is the same step.
  7. In d, η is that of the round in which Δ was computed. η_g is not in d; the code has none.
  8. `client_weighting=examples` weighs the means by n_k.
  9. The code's clipping of gradients and its decay of the rate are left out.
"""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.parts.moments import bias_left, moving_average
from tff_algos.registry import Aggregated, MethodSpec, RoundCost, decay
from tff_algos.vector import Vector, constants, zeros
from tff_suite.hparams import By, Hparam

SPEC = MethodSpec(
    name="fedadamw",
    display_name="FedAdamW",
    look=("black", "dashed"),
    summary="AdamW on the clients, from a shared second moment, towards the last global update.",
    paper="Liu et al., FedAdamW: A Communication-Efficient Optimizer, arXiv 2510.27486",
    hparams=(
        decay("beta1", 0.9, "Decay beta_1 of the first moment.", "FedAdamW, the released code"),
        decay("beta2", 0.999, "Decay beta_2 of the second moment.", "FedAdamW, the released code"),
        Hparam(
            "epsilon",
            1e-8,
            "Epsilon, added outside the root.",
            source="FedAdamW, the released code",
            minimum=0.0,
            exclusive_minimum=True,
        ),
        Hparam(
            "weight_decay",
            0.01,
            "Decoupled weight decay lambda: it does not enter the moments.",
            source="FedAdamW, the released code",
            minimum=0.0,
        ),
        Hparam(
            "alpha",
            0.5,
            "Strength alpha of the last global update's direction in a local step.",
            source="FedAdamW, the released code",
            minimum=0.0,
        ),
        Hparam(
            "second_moment",
            "block_means",
            "Second moment that clients share: block_means, one number for each tensor of weights; "
            "full, all of it, as in the released code for images.",
            source="FedAdamW, the paper",
            choices=("block_means", "full"),
        ),
        Hparam(
            "bias_steps",
            "separate",
            "Steps that correct the moments' bias: separate, the round's for the first and the "
            "run's for the second; common, the run's for both, as in the released code.",
            source="FedAdamW, the paper",
            choices=("separate", "common"),
        ),
        Hparam(
            "decay_sign",
            "adamw",
            "Sign of the decay: adamw, weights shrink; printed, they grow, as the paper's "
            "algorithm has it.",
            source="FedAdamW, the paper's words and the released code",
            choices=("adamw", "printed"),
        ),
        Hparam(
            "counted_steps",
            None,
            "Local steps K that a round counts as, in its direction and in bias correction. "
            "Default: the mean of the steps that its clients took.",
            source="FedAdamW, the paper (all clients take K)",
            type=float,
            minimum=0.0,
            exclusive_minimum=True,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(
        in_clear=By(
            "second_moment",
            {"block_means": "the block means of their second moments"},
            otherwise="their second moments",
        )
    ),
    measures=(),
    cost=RoundCost(down=2),
)


class ServerState(NamedTuple):
    """What the server keeps between rounds.

    Attributes:
      weights: The model x, one tensor per model weight.
      direction: d, like the weights.
      second_moment: v̄, one float32 scalar per model weight; like the weights if it is full.
      steps: T, the steps of all rounds so far, float32 scalar.
      round_num: Rounds done, int32 scalar.
    """

    weights: Vector
    direction: Vector
    second_moment: Vector
    steps: tf.Tensor
    round_num: tf.Tensor


class Broadcast(NamedTuple):
    """What every client receives: x, d, v̄ and T from the server, and the client rate η."""

    weights: Vector
    direction: Vector
    second_moment: Vector
    steps: tf.Tensor
    learning_rate: tf.Tensor


class Report(NamedTuple):
    """What a client sends: x_k - x and v̄_k, and the steps it took, float32 scalar."""

    delta: Vector
    second_moment: Vector
    steps: tf.Tensor


def build(
    model: Model,
    local: client.LocalTraining,
    *,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    alpha: float,
    second_moment: str,
    bias_steps: str,
    decay_sign: str,
    counted_steps: float | None,
) -> Method:
    """Builds FedAdamW; see the module's docstring for the symbols."""
    pull = weight_decay if decay_sign == "adamw" else -weight_decay

    def shared(v: Vector) -> Vector:
        return v if second_moment == "full" else v.map(tf.reduce_mean)

    def initialize() -> ServerState:
        x = constants(model.initial_weights)
        return ServerState(x, zeros(x), shared(zeros(x)), tf.constant(0.0), tf.constant(0))

    def broadcast(state: ServerState) -> Broadcast:
        eta = local.learning_rate(state.round_num)
        return Broadcast(state.weights, state.direction, state.second_moment, state.steps, eta)

    def client_update(broadcast: Broadcast, data: ClientData) -> ClientResult:
        x, d, v_bar, steps, eta = broadcast

        def step(at, carry):
            m, v = carry
            j = tf.cast(at.number + 1, tf.float32)
            t = steps + j
            m = moving_average(beta1, m, at.gradient)
            v = moving_average(beta2, v, at.gradient**2)
            m_hat = m / bias_left(tf.constant(beta1, tf.float64), j if separate else t)
            v_hat = v / bias_left(tf.constant(beta2, tf.float64), t)
            direction = m_hat / (v_hat.sqrt() + epsilon) + alpha * d + pull * at.weights
            return at.weights - eta * direction, (m, v)

        separate = bias_steps == "separate"
        start = zeros(x), zeros(x) + v_bar
        trained, (_, v) = client.take_steps(model, step, x, start, data)
        taken = tf.cast(client.num_steps(data), tf.float32)
        return ClientResult(trained, Report(trained.weights - x, shared(v), taken))

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        v_bar = federation.mean(update.report.second_moment, update.weight)
        return delta, v_bar, federation.mean(update.report.steps, update.weight)

    def server_update(
        state: ServerState, delta: Vector, v_bar: Vector, taken: tf.Tensor
    ) -> ServerState:
        steps = counted_steps or taken
        d = (-delta).over(steps * local.learning_rate(state.round_num))
        x = state.weights + local.server_learning_rate * delta
        return ServerState(x, d, v_bar, state.steps + steps, state.round_num)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=broadcast,
        aggregate=aggregate,
    )
