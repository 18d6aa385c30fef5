"""FedJAX as a side of the speed benchmark, in an environment of its own.

    .venv-peers/fedjax/bin/python benchmarks/peers/fedjax_side.py WORK.npz

`fedjax.algorithms.fed_avg` with haiku models, as FedJAX's own. FedJAX trains clients either one
after the other (`jit`) or one on each device (`pmap`); each workload has the one that was faster on
two busy cores, a core being a device. Both LSTM layers go through one `hk.dynamic_unroll`: the
`hk.static_unroll` of FedJAX's Shakespeare model did not finish compiling in ten minutes there.

`shuffle_repeat_batch` fills a client's last minibatch up with more of its examples: 200 in place of
W1's 198, or at most a minibatch less one where clients are unequal.
"""

import contextlib
import os
import sys

if __name__ == "__main__" and {"--help", "-h"} & set(sys.argv):
    with contextlib.suppress(BrokenPipeError):
        print(__doc__, flush=True)
    os._exit(0)

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import protocol
from fedjax.algorithms import fed_avg


def _cnn(num_classes):
    def forward(x):
        x = jax.nn.relu(hk.Conv2D(32, 3, padding="VALID")(x))
        x = jax.nn.relu(hk.Conv2D(64, 3, padding="VALID")(x))
        x = hk.MaxPool((1, 2, 2, 1), (1, 2, 2, 1), "VALID")(x)
        x = hk.dropout(hk.next_rng_key(), 0.25, x)
        x = jax.nn.relu(hk.Linear(128)(hk.Flatten()(x)))
        return hk.Linear(num_classes)(hk.dropout(hk.next_rng_key(), 0.5, x))

    return forward


def _shakespeare(x):
    core = hk.DeepRNN([hk.LSTM(256), hk.LSTM(256)])
    tokens = hk.Embed(90, 8)(x.T)
    states, _ = hk.dynamic_unroll(core, tokens, core.initial_state(len(x)))
    return hk.Linear(90)(states).transpose(1, 0, 2)


def _dense(units):
    return lambda x: hk.Linear(units)(x)


def _cross_entropy(y, logits):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)[..., 0]


def _mean_cross_entropy(y, logits):
    return jnp.mean(_cross_entropy(y, logits))


def _masked_cross_entropy(y, logits):
    is_token = jnp.concatenate([jnp.ones_like(y[:, :1]), y[:, :-1]], 1) > 0
    return jnp.sum(_cross_entropy(y, logits) * is_token) / jnp.sum(is_token)


def _sum_binary_cross_entropy(y, logits):
    losses = jnp.maximum(logits, 0) - logits * y + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.sum(jnp.mean(losses, -1))


# Workload → forward pass, loss of a minibatch, number of parameters, FedJAX's way over clients.
_MODELS = {
    "w1": (_cnn(62), _mean_cross_entropy, 1_206_590, "pmap"),
    "w2": (_dense(500), _sum_binary_cross_entropy, 5_000_500, "pmap"),
    "w3": (_shakespeare, _masked_cross_entropy, 820_522, "pmap"),
    "w4": (_dense(10), _mean_cross_entropy, 610, "jit"),
    "w5": (_dense(10), _mean_cross_entropy, 610, "jit"),
    "w6": (_cnn(10), _mean_cross_entropy, 1_199_882, "pmap"),
}


class Rounds:
    """Rounds of FedAvg on a workload; `state.params` are the weights."""

    def __init__(self, work: protocol.Work):
        forward, loss, size, backend = _MODELS[work.name]
        if backend == "pmap":
            # Read when JAX is first used.
            cores = len(os.sched_getaffinity(0))
            os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={cores}"
        fedjax.set_for_each_client_backend(backend)
        model = hk.transform(forward)

        def loss_of(params, batch, rng):
            return loss(batch["y"], model.apply(params, rng, batch["x"]))

        data = {str(k): {"x": x, "y": y} for k, (x, y) in enumerate(work.clients)}
        self._sampler = fedjax.client_samplers.UniformGetClientSampler(
            fedjax.InMemoryFederatedData(data), len(data), seed=0
        )
        self._algorithm = fed_avg.federated_averaging(
            jax.jit(jax.grad(loss_of)),
            fedjax.optimizers.sgd(work.learning_rate),
            fedjax.optimizers.sgd(1.0),
            fedjax.ShuffleRepeatBatchHParams(work.batch_size, num_epochs=1),
        )
        params = jax.jit(model.init)(jax.random.PRNGKey(0), work.clients[0][0][:1])
        assert sum(w.size for w in jax.tree_util.tree_leaves(params)) == size
        self.state = self._algorithm.init(params)

    def __call__(self, numbers: range) -> None:
        """Runs as many rounds."""
        for _ in numbers:
            self.state, _ = self._algorithm.apply(self.state, self._sampler.sample())
        jax.block_until_ready(self.state.params)


def main() -> None:
    """Serves the workload of the file that the command line names."""
    answers = protocol.take_over_output()
    work = protocol.read(sys.argv[1])
    protocol.serve(Rounds(work), work.rounds_a_turn, answers)


if __name__ == "__main__":
    main()
