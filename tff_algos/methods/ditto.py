"""Ditto: each client also trains a personal model that is held near the common one.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, arXiv 2012.04221, Algorithms 1 and 2 with FedAvg for the common model; a baseline of AdaFed.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  λ        lambda_               0.1       AdaFed, App. (best on most)
  η        server_learning_rate  1         Algorithm 2: the mean of the clients' models
  1/|S|    client_weighting      uniform   Algorithm 2

    client k keeps v_k, first visit: v_k = x
    client:  w_k ← x ; each batch b: v_k ← v_k - η_l [∇f(v_k; b) + λ (v_k - x)]
                                     w_k ← w_k - η_l ∇f(w_k; b)
    server:  x ← x + η mean(w_k - x)

x is the broadcast model in both lines. A client is evaluated with its v_k, or with x before its
first visit.

Deviations from the paper:
  * Both models take the same batches at the same rate, as in the authors' released code; Algorithm
    2 does not specify the number and rate of the personal steps.
  * That code draws clients with probabilities proportional to n_k; here they are drawn uniformly,
    like all cohorts of this suite.
  * If the new v_k is not finite, the client keeps the old one; `train/personal_diverged` is the
    number of such clients. Only w_k decides whether the client is dropped, so the common model is
    that of FedAvg for every λ.
"""

from __future__ import annotations

import collections
from typing import NamedTuple

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import ClientState, Method, mean_of_updates
from tff_algos.model import Model
from tff_algos.registry import Aggregated, MethodSpec, RoundCost
from tff_algos.vector import Vector, zeros
from tff_suite.hparams import Hparam

SPEC = MethodSpec(
    name="ditto",
    display_name="Ditto",
    look=("wine", "dashed"),
    summary="Each client has its own model, held near the common one.",
    paper=(
        "Li, Hu, Beirami, Smith, Ditto: Fair and Robust Federated Learning Through "
        "Personalization, arXiv 2012.04221"
    ),
    hparams=(
        Hparam(
            "lambda_",
            0.1,
            "Pull lambda of a client's own model towards the common one: 0 is local training. The "
            "step diverges where client_learning_rate * lambda > 2.",
            source="AdaFed, App. (best on FEMNIST, Shakespeare, CINIC-10; grid 0.01 to 5)",
            minimum=0.0,
        ),
    ),
    server_learning_rate=1.0,
    client_weighting="uniform",
    client_optimizers=("sgd",),
    aggregated=Aggregated(),
    measures=("personal_diverged",),
    cost=RoundCost(gradients=2),
    known_problems=(
        "Before its first visit a client is evaluated with the common model. With few rounds, "
        "most clients are.",
    ),
    used_for=("NVIDIA FLARE ships it.",),
)


class Report(NamedTuple):
    """What a client sends: w_k - x, like the weights, and 1 if v_k is not finite though w_k is."""

    delta: Vector
    diverged: tf.Tensor


def build(model: Model, local: client.LocalTraining, *, lambda_: float) -> Method:
    """Builds Ditto; see the module's docstring for the symbols."""

    def client_update(
        broadcast: averaging.Broadcast, data: ClientData, client_state: ClientState
    ) -> ClientResult:
        x, eta_l = broadcast

        def step(at, v):
            v -= eta_l * (at.gradient_at(v) + lambda_ * (v - x))
            return at.weights - eta_l * at.gradient, v

        own = client.recall(client_state, x)
        trained, own = client.take_steps(model, step, x, own, data)
        delta = trained.weights - x
        finite = client.is_finite(own)
        report = Report(delta, tf.cast(~finite, tf.float32))
        return ClientResult(trained, report, finite=client.is_finite(delta), kept=own, keeps=finite)

    def aggregate(federation, update):
        delta = mean_of_updates(federation, update.report.delta, update.weight)
        return delta, federation.sum(update.report.diverged)

    def server_update(
        state: averaging.ServerState, delta: Vector, diverged: tf.Tensor
    ) -> averaging.Outcome:
        x = state.weights + local.server_learning_rate * delta
        own = collections.OrderedDict(personal_diverged=diverged)
        return averaging.Outcome(state._replace(weights=x), own)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        aggregate=aggregate,
        client_state=lambda: zeros(model.initial_weights),
        personal_weights=lambda own: own,
    )
