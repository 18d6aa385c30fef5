"""Federated averaging of clipped client updates: a worked example of a method of one's own.

McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR
2018, arXiv 1710.06963, Algorithm 1 with flat clipping and without its noise.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  S        clip_norm             1.0       choice

    client:  Δ_k = x_k - x ;  Δ_k ← Δ_k · min(1, S / ‖Δ_k‖)
    server:  x ← x + η Σ p_k Δ_k

Deviations from the paper: no noise; weights p_k are those of `client_weighting`, where the paper
caps them.

Use it as

    python run_experiment.py --import=examples.clipped_fedavg --algorithm=clipped_fedavg ...
"""

from hparams import Hparam
from tff_algos import MethodSpec, register


def build(model, local, *, clip_norm):
    """Builds the method; see `tff_algos.registry.MethodSpec` for what it is given."""
    # Here, so that flags can be checked before TensorFlow is imported.
    from typing import Any, NamedTuple

    import tensorflow as tf

    from tff_algos import client
    from tff_algos.method import Method

    class ServerState(NamedTuple):
        """The model x, and the rounds done (int32)."""

        weights: Any
        round_num: Any

    class Broadcast(NamedTuple):
        """The model x and the client learning rate."""

        weights: Any
        learning_rate: Any

    class Update(NamedTuple):
        """The clipped Δ_k, its weight, and training metrics."""

        delta: Any
        weight: Any
        metrics: Any

    def initialize():
        return ServerState(tuple(tf.constant(w) for w in model.initial_weights), tf.constant(0))

    def prepare_broadcast(state):
        return Broadcast(state.weights, local.learning_rate(state.round_num))

    @tf.function(autograph=False)
    def client_update(broadcast, data):
        x = broadcast.weights
        trained = client.train(model, local.optimizer(), broadcast.learning_rate, x, data)
        delta = tuple(a - b for a, b in zip(trained.weights, x, strict=True))
        # Not by `tf.linalg.global_norm`, whose operation has no form over a whole cohort.
        norm = tf.sqrt(tf.add_n([tf.reduce_sum(d**2) for d in delta]))
        # A client that did not move has norm 0, and nothing to clip.
        scale = tf.where(norm > clip_norm, tf.math.divide_no_nan(clip_norm, norm), 1.0)
        finite = client.is_finite(delta)
        return Update(
            delta=client.zero_unless(finite, tuple(scale * d for d in delta)),
            weight=client.zero_unless(finite, local.client_weight(data)),
            metrics=client.round_metrics(trained, data, finite),
        )

    @tf.function(autograph=False)
    def server_update(state, delta):
        eta = local.server_learning_rate
        weights = tuple(x + eta * d for x, d in zip(state.weights, delta, strict=True))
        return ServerState(weights, state.round_num + 1)

    def next_round(federation, state, clients):
        broadcast = federation.broadcast(federation.map_server(prepare_broadcast, state))
        update = federation.map_clients(client_update, broadcast, clients)
        delta = federation.mean(update.delta, update.weight)
        metrics = federation.map_server(client.summarize, federation.sum(update.metrics))
        return federation.map_server(server_update, state, delta), metrics

    return Method(initialize, next_round)


register(
    MethodSpec(
        name="clipped_fedavg",
        summary="Federated averaging of client updates clipped to a norm.",
        paper="McMahan et al., arXiv 1710.06963",
        builder=build,
        hparams=(
            Hparam(
                "clip_norm",
                1.0,
                "Largest L2 norm of a client's update (S); longer ones are shortened to it.",
                source="choice",
                minimum=0.0,
                exclusive_minimum=True,
            ),
        ),
        server_learning_rate=1.0,
    )
)
