"""FedJAX as a side of the speed benchmark, in its own environment.

    .venv-peers/fedjax/bin/python benchmarks/peers/fedjax_side.py WORK.npz

It uses `fedjax.algorithms.fed_avg` with haiku models like FedJAX's own. FedJAX trains clients
either one after the other (`jit`) or one per device (`pmap`). Each workload uses the one that was
faster on two busy cores, with each core as a device. Both LSTM layers go through one
`hk.dynamic_unroll`: the `hk.static_unroll` of FedJAX's Shakespeare model did not finish compiling
there within ten minutes. FedJAX does not include a residual network, so W7 is left out.

`shuffle_repeat_batch` fills up a client's last minibatch by repeating examples. So W1 has 200
examples in place of 198, and an unequal client has at most a minibatch less one more.
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


def _recurrent(tokens, size, layers, after):
    def forward(x):
        core = hk.DeepRNN([hk.LSTM(units) for units in layers])
        states = hk.Embed(tokens, size)(x.T)
        states, _ = hk.dynamic_unroll(core, states, core.initial_state(len(x)))
        for units in after:
            states = hk.Linear(units)(states)
        return states.transpose(1, 0, 2)

    return forward


_shakespeare = _recurrent(90, 8, (256, 256), (90,))
_words = _recurrent(10_004, 96, (670,), (96, 10_004))


def _dense(*units):
    return lambda x: hk.nets.MLP(units)(x)


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
    "w8": (_words, _masked_cross_entropy, 4_050_748, "pmap"),
    "w9": (_cnn(62), _mean_cross_entropy, 1_206_590, "pmap"),
    "w10": (_dense(200, 200, 10), _mean_cross_entropy, 199_210, "jit"),
}


class Rounds:
    """Rounds of FedAvg on a workload; `state.params` are the weights."""

    def __init__(self, work: protocol.Work):
        if work.name not in _MODELS:
            raise ValueError(f"FedJAX has no model for {work.name}.")
        forward, loss, size, backend = _MODELS[work.name]
        if backend == "pmap":
            # JAX reads this at its first use.
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
