"""Centralized training: one optimizer on all clients' examples together, in shuffled epochs.

The reference of Reddi, Charles, et al.: "Adaptive Federated Optimization", ICLR 2021, arXiv
2003.00295, Table 11 (top row), with SGD, SGD with momentum, Adam, Adagrad and Yogi.

  symbol   argument              default   from
  η        client_learning_rate  -         tuned
  -        client_optimizer      sgd       Table 11 has sgd, sgdm, adam, adagrad, yogi
  -        steps_per_round       an epoch  choice: the paper trains for 100 epochs

    once:    x, s ← initial weights, fresh optimizer state
    round:   each batch of the pooled, shuffled examples: s, x ← optimizer(s, x, ∇f(x; batch))

All examples belong to one client (`RoundPlan.cohort` is `pooled`), which starts from the server's
weights and optimizer state and sends both back. A round is `client_epochs_per_round` epochs, each
in a different order, or `steps_per_round` minibatches. In the latter case rounds continue through
the shuffled epochs, so the training does not depend on where a round ends. Schedules of the
learning rate count rounds, as everywhere.

Deviations from the paper:
  * The optimizers are TFF's: Adagrad has ε inside the root and its accumulator starts at 0.1,
    Yogi's at 1e-6. The paper does not say which values it used.
  * If a user's own loop passes several clients, the server takes the plain mean of what they send
    back. A client whose result is not finite, or that has no examples, is left out.
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
from tff_algos.registry import MethodSpec, RoundPlan
from tff_algos.vector import Vector
from tff_suite.hparams import Hparam


def _plan(settings, round_num, total_rounds):
    steps = settings["steps_per_round"]
    return RoundPlan("pooled", local_steps=steps, first_step=steps and round_num * steps)


SPEC = MethodSpec(
    name="centralized",
    display_name="Centralized",
    look=("black", "dash_dot"),
    summary="One optimizer on the pooled, shuffled examples of all clients: the reference.",
    paper="Reddi, Charles, et al., Adaptive Federated Optimization, arXiv 2003.00295",
    hparams=(
        Hparam(
            "steps_per_round",
            None,
            "Minibatches per round; the next round continues in the same shuffled epoch. By "
            "default a round is client_epochs_per_round whole epochs.",
            source="Adaptive Federated Optimization, App. E.6, counts epochs",
            type=int,
            minimum=1,
        ),
    ),
    server_learning_rate=1.0,
    has_server_step=False,
    client_weighting=None,
    draws_clients=False,
    plan=_plan,
    aggregated="has one client, which holds all examples",
    measures=(),
)


def build(model: Model, local: client.LocalTraining, *, steps_per_round: int | None) -> Method:
    """Builds centralised training; see the module's docstring for the symbols. The slots are s."""
    del steps_per_round  # It is the round's plan.
    optimizer = local.optimizer()

    def client_update(broadcast: server_slots.Broadcast, data: ClientData) -> ClientResult:
        x, s, eta = broadcast
        trained = client.train(model, optimizer, eta, x, data, slots=s)
        weight = tf.cast(client.has_examples(data), tf.float32)
        return ClientResult(trained, (trained.weights, trained.slots), weight=weight)

    def server_update(
        state: server_slots.ServerState, mean: tuple[Vector, Any]
    ) -> server_slots.ServerState:
        x, s = mean
        return state._replace(weights=x, slots=s)

    return averaging.build(
        model,
        local,
        client_update,
        server_update,
        initialize=lambda: server_slots.initial_state(model, local, averaged=True),
        broadcast=server_slots.send(local),
    )
