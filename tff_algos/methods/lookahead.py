"""Lookahead: clients take k fast steps of any optimizer; the server goes a part of the way.

Zhang, Lucas, Ba, Hinton: "Lookahead Optimizer: k steps forward, 1 step back", NeurIPS 2019, arXiv
1907.08610, Algorithm 1. It is a special case of FedOpt (Reddi et al., arXiv 2003.00295, App. B.3).

  symbol   argument              default    from
  -        client_learning_rate  -          tuned
  A        client_optimizer      sgdm       choice: momentum 0.9 (Lookahead wraps any optimizer)
  k        local_steps           5          Lookahead (not checked)
  α        server_learning_rate  0.5        Lookahead (not checked)
  -        state                 reset      FedOpt: clients keep nothing
  p_k      client_weighting      examples   FedOpt, Algorithm 5

    client:  x_k ← x ; k steps of A on its batches
    server:  x ← x + α Σ p_k (x_k - x)

With `state=reset` A starts from zero on every client in every round. With `average` the server
averages the clients' slots, and clients start from the mean. With `keep` each client continues from
its own slots.

Deviations from the paper:
  * There are several clients. The paper trains one model with one optimizer for the whole run,
    which is `keep` with a single client.
  * A client with fewer than k batches repeats its data, in a new order each time.
  * Averaged slots include Adam's step count.
  * A client whose update is not finite keeps its old slots.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tff_algos import averaging, client
from tff_algos.averaging import ClientResult
from tff_algos.client_data import ClientData
from tff_algos.method import Method
from tff_algos.model import Model
from tff_algos.parts import server_slots
from tff_algos.registry import Aggregated, MethodSpec, RoundPlan
from tff_algos.vector import Vector
from tff_suite.hparams import By, Hparam


def _plan(settings, round_num, total_rounds):
    return RoundPlan(local_steps=settings["local_steps"])


SPEC = MethodSpec(
    name="lookahead",
    display_name="Lookahead",
    look=("purple", "dash_dot_dot"),
    summary="Clients take a few fast steps; the server goes a part of the way.",
    paper="Zhang et al., Lookahead Optimizer, arXiv 1907.08610",
    hparams=(
        Hparam(
            "local_steps",
            5,
            "Minibatch steps k of a client in a round, regardless of the epochs.",
            source="Lookahead",
            minimum=1,
        ),
        Hparam(
            "state",
            "reset",
            "What becomes of the client optimizer's state after a round: reset, average over the "
            "cohort, or keep for the client's next one.",
            source="Adaptive Federated Optimization, Algorithm 1: clients keep nothing",
            choices=("reset", "average", "keep"),
        ),
    ),
    server_learning_rate=0.5,
    client_optimizers=("sgdm", "sgd", "adagrad", "adam", "adamw", "rmsprop", "yogi"),
    plan=_plan,
    aggregated=Aggregated(
        in_clear=By("state", {"average": "their optimizer's slots"}, otherwise="")
    ),
    measures=(),
)


def build(model: Model, local: client.LocalTraining, *, local_steps: int, state: str) -> Method:
    """Builds Lookahead; see the module's docstring for the symbols."""
    del local_steps  # It is the round's plan.
    alpha = local.server_learning_rate
    average = state == "average"
    optimizer = local.optimizer()

    def initialize() -> server_slots.ServerState:
        initial = server_slots.initial_state(model, local, averaged=True)
        return initial if average else initial._replace(slots=())

    @averaging.keep_optimizer(local)
    def client_update(
        broadcast: server_slots.Broadcast, data: ClientData, own: client.Optimizer
    ) -> ClientResult:
        x, slots, eta_l = broadcast
        slots = slots if average else None
        trained = client.train(model, own, eta_l, x, data, slots=slots)
        delta = trained.weights - x
        finite = client.is_finite((delta, () if state == "reset" else trained.slots))
        return ClientResult(trained, (delta, trained.slots if average else ()), finite=finite)

    def server_update(
        state: server_slots.ServerState, mean: tuple[Vector, Any]
    ) -> server_slots.ServerState:
        delta, slots = mean
        if average:
            slots = server_slots.with_settings_of(optimizer, slots, state.slots)
        return state._replace(weights=state.weights + alpha * delta, slots=slots)

    def no_slots():
        return optimizer.start(model.initial_weights, tf.constant(0.0))

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=initialize,
        broadcast=server_slots.send(local),
        aggregate=averaging.mean_each(tuple, 0, 1),
        client_state=no_slots if state == "keep" else None,
    )
