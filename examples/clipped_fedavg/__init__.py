"""Federated averaging of clipped client updates: a worked example of a user's own method.

McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language Models", ICLR
2018, arXiv 1710.06963, Algorithm 1 with flat clipping and without its noise.

  symbol   argument              default   from
  η_l      client_learning_rate  -         tuned
  S        clip_norm             1.0       choice

    client:  Δ_k = x_k - x ;  Δ_k ← Δ_k · min(1, S / ‖Δ_k‖)
    server:  x ← x + η Σ p_k Δ_k

Deviations from the paper: no noise; the weights p_k follow `client_weighting`, whereas the paper
caps them.

Use it as

    python run_experiment.py --import=examples.clipped_fedavg --algorithm=clipped_fedavg ...
"""

from tff_algos import MethodSpec, register
from tff_suite.hparams import Hparam


def build(model, local, *, clip_norm):
    """Builds the method; see `tff_algos.registry.MethodSpec` for the arguments."""
    # Here, so that flags can be checked before TensorFlow is imported.
    import tensorflow as tf

    from tff_algos import averaging, client

    def client_update(broadcast, data):
        x, eta_l = broadcast
        trained = client.train(model, local.optimizer(), eta_l, x, data)
        delta = trained.weights - x
        norm = delta.norm()
        # A client that did not move has norm 0, and nothing to clip.
        scale = tf.where(norm > clip_norm, tf.math.divide_no_nan(clip_norm, norm), 1.0)
        finite = client.is_finite(delta)
        return averaging.ClientResult(trained, scale * delta, finite=finite)

    # The server's step is the default one: x + η Σ p_k Δ_k.
    return averaging.build(model, local, client_update)


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
        measures=(),
    )
)
