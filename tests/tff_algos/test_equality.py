"""`==` between tensors, which is identity in graphs that are built as TFF builds them."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import tff_algos
from simulation import runtimes
from tff_algos import method as method_lib
from tff_algos import process as process_lib


class _Layer(tf.keras.layers.Layer):
    """Zeroes what equals 1, by `!=` in a user's own layer."""

    def call(self, inputs):
        return inputs * tf.cast(inputs != 1.0, tf.float32)


def _keras_model():
    inputs = tf.keras.Input((3,))
    changed = _Layer()(inputs)
    # An operation between Keras's symbols, too, is called only when a batch comes.
    same = tf.cast(changed == inputs, tf.float32)
    layer = tf.keras.layers.Dense(2, kernel_initializer="ones", bias_initializer="ones")
    return tf.keras.Model(inputs, layer(changed + same * 0.5))


def _loss(y, outputs):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
    return losses * tf.where(y == 1, 3.0, 1.0)


def _is_one(y, outputs):
    return y == 1


@tf.function
def _sums_to(y, outputs):
    # In a function within a function.
    return outputs[:, 0] == 4.5


X = np.array([[1, 1, 2], [1, 2, 0], [0, 0, 2]], np.float32)
Y = np.array([1, 1, 0], np.int32)
#  1 is zeroed and then differs; what is left adds 0.5: 0 0 2.5, 0 2.5 0.5, 0.5 0.5 2.5, plus 1.
OUTPUTS = np.array([3.5, 4.0, 4.5])


@pytest.fixture(scope="module")
def process():
    model = tff_algos.from_keras(
        _keras_model(), loss=_loss, metrics={"ones": _is_one, "sums": _sums_to}
    )
    inner = tff_algos.build("fedavg", model, client_learning_rate=0.0).method

    def next_round(federation, state, clients):
        state, metrics = inner.next_round(federation, state, clients)

        # A function of someone's method that is no `tf.function`.
        def compare(metrics):
            return collections.OrderedDict(
                [*metrics.items(), ("three", tf.cast(metrics["num_examples"] == 3.0, tf.float32))]
            )

        return state, federation.map_server(compare, metrics)

    return process_lib.to_process(inner._replace(next_round=next_round), model)


@pytest.mark.parametrize("runtime", runtimes.RUNTIMES)
def test_users_may_compare_tensors(process, runtime):
    with runtimes.installed(runtime):
        bound = runtimes.bind(process)
        data = [tff_algos.batch_client(X, Y, batch_size=2, shuffle=False)]
        metrics = bound.next(bound.initialize(), data).metrics
    assert float(metrics["ones"]) == pytest.approx(2 / 3)
    assert float(metrics["sums"]) == pytest.approx(np.mean(OUTPUTS == 4.5))
    assert float(metrics["loss"]) == pytest.approx(np.log(2) * (3 + 3 + 1) / 3, rel=1e-5)
    assert float(metrics["three"]) == 1


def test_tracing_leaves_tensorflow_as_it_was():
    """Also where a user's function fails: TFF's graphs hide eager code again afterwards."""
    seen = []
    with tf.Graph().as_default():
        for fails in (False, True):
            try:
                with method_lib._as_from_eager_code():
                    seen.append(tf.compat.v1.executing_eagerly_outside_functions())
                    if fails:
                        raise KeyError
            except KeyError:
                pass
            seen.append(tf.compat.v1.executing_eagerly_outside_functions())
    assert seen == [True, False] * 2


@pytest.mark.parametrize("operator", ["==", "!="])
def test_the_suite_compares_no_tensors(operator):
    """`conftest.py` lets no module of the suite do so, whichever test runs it."""
    source = f"def compare(a, b):\n    return a {operator} b"
    ours, theirs = {}, {}
    exec(compile(source, method_lib.__file__, "exec"), ours)
    exec(compile(source, __file__, "exec"), theirs)
    for a, b in ((tf.constant(1), 1), (1, tf.constant(1)), (tf.constant(1), tf.constant(2))):
        with pytest.raises(AssertionError, match=r"tf.equal"):
            ours["compare"](a, b)
        theirs["compare"](a, b)
    assert ours["compare"](tf.constant(1), None) in (True, False), "a test for None is no trap"
