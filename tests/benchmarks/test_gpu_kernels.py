"""That nothing inside a client's loop has to leave a GPU, as far as TensorFlow's lists tell."""

import collections

import pytest
import tensorflow as tf

import tff_algos
from benchmarks import gpu_kernels
from tests.oracles import problem as problem_lib
from tests.tasks.test_registry import OWN
from tests.tff_algos import shared, toy
from tff_algos import registry

pytestmark = pytest.mark.skipif(
    not tf.test.is_built_with_cuda(), reason="TensorFlow knows its GPU kernels if built with CUDA"
)

# Models with what no other has: pooling, sparse inputs.
_SIXTEEN_BITS = ("float16", "bfloat16")


def _graph(function, *specs):
    return tf.function(function).get_concrete_function(*specs).graph.as_graph_def()


def _smallest(x):
    """An operation that only a CPU has, on a number that only a GPU has."""
    return tf.raw_ops.NthElement(input=tf.tanh(x), n=0) + tf.reduce_sum(x)


_VECTOR = tf.TensorSpec([None])


def test_an_operation_of_the_cpu_is_found_in_a_loop_and_outside():
    def in_loop(x):
        step = tf.function(lambda i, total: (i + 1, total + _smallest(x)))
        return tf.while_loop(lambda i, total: i < 3, step, (0, 0.0))

    for function, inside, outside in (
        (in_loop, ["NthElement[float32]"], []),
        (_smallest, [], ["NthElement[float32]"]),
        (tf.tanh, [], []),
    ):
        found = gpu_kernels.operations(_graph(function, _VECTOR))
        assert gpu_kernels.lacking(found, in_loop=True) == inside
        assert gpu_kernels.lacking(found, in_loop=False) == outside
    found = gpu_kernels.operations(_graph(_smallest, _VECTOR), in_loop=True)
    assert gpu_kernels.lacking(found, in_loop=True) == ["NthElement[float32]"]


def test_a_loops_condition_that_is_computed_on_the_gpu_is_copied_in_every_step():
    def with_condition(condition):
        def loop(x):
            return tf.while_loop(condition, lambda i, x: (i + 1, x * 2), (0, x))

        return {
            o.name
            for o in gpu_kernels.operations(_graph(loop, tf.TensorSpec([])))
            if o.in_loop and o.copies and o.place == gpu_kernels.GPU
        }

    assert with_condition(lambda i, x: i < 3) == set()
    assert with_condition(lambda i, x: x < 3.0) == {"Less"}


def test_what_is_on_the_host_by_convention_is_no_lack():
    def shapes_and_names(x, names):
        rows, columns = tf.split(tf.shape(x), 2)  # Of int32 the CPU alone has it.
        tf.debugging.assert_equal(tf.strings.length(names), 3, message="names of three letters")
        return tf.reshape(x, tf.concat([columns, rows], 0))

    specs = tf.TensorSpec([None, None]), tf.TensorSpec([None], tf.string)
    found = gpu_kernels.operations(_graph(shapes_and_names, *specs), in_loop=True)
    places = {o.name: o.place for o in found}
    assert places["Split"] == places["StringLength"] == gpu_kernels.CPU
    assert places["Reshape"] == gpu_kernels.GPU and places["ConcatV2"] == gpu_kernels.HOST
    assert gpu_kernels.lacking(found, in_loop=True) == []


def test_the_implementation_for_a_gpu_counts():
    layer = tf.keras.layers.LSTM(3)
    layer.build((2, 4, 5))
    found = gpu_kernels.operations(_graph(layer, tf.TensorSpec([2, 4, 5])))
    assert any(o.name.startswith("CudnnRNN") for o in found)
    assert not any(o.in_loop for o in found), "the loop over time is the CPU's implementation"


def test_a_loop_that_cannot_be_told_apart_is_refused():
    with tf.Graph().as_default() as graph:
        tf.raw_ops.Enter(data=tf.constant(0.0), frame_name="loop")
    with pytest.raises(ValueError, match="loop of TensorFlow 1"):
        gpu_kernels.operations(graph.as_graph_def())


@pytest.mark.quick_cases("fedavg", "scaffold")
@pytest.mark.parametrize("name", shared.methods(registry.names()))
def test_nothing_of_a_methods_round_lacks_a_gpu_kernel(name):
    if registry.get(name).staged:
        model = toy.toy_model(shared.problem())  # Labels are found from a model's outputs.
        process = tff_algos.build(name, model, num_clients=5, client_learning_rate=0.1)
    else:
        process = shared.process(name)
    runtimes = gpu_kernels.of_round(process)
    assert set(runtimes) >= {"tff"} and runtimes["tff"].total() > 100
    assert ("vectorized" in runtimes) != registry.get(name).staged
    for found in runtimes.values():
        assert any(o.in_loop and "MatMul" in o.name for o in found)
        assert gpu_kernels.lacking(found, in_loop=True) == []
        assert gpu_kernels.lacking(found, in_loop=False) == []


def test_an_operation_of_the_cpu_in_a_clients_step_is_found():
    model = toy.plain_model(problem_lib.make_problem())

    def forward(weights, batch, training, seed):
        result = model.forward(weights, batch, training, seed)
        return result._replace(objective=result.objective + _smallest(batch.x[0]))

    process = tff_algos.build("fedavg", model._replace(forward=forward), client_learning_rate=0.1)
    found = gpu_kernels.of_round(process)["tff"]
    assert gpu_kernels.lacking(found, in_loop=True) == ["NthElement[float32]"]


@pytest.mark.quick_cases("float32-emnist_character")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("precision", ["float32", *(f"mixed_{p}" for p in _SIXTEEN_BITS)])
def test_nothing_of_a_tasks_model_lacks_a_gpu_kernel(name, precision):
    graphs = dict(gpu_kernels.of_tasks([name], precision))
    model = graphs.pop(f"model of {name}")
    assert model.total() > 20 and gpu_kernels.lacking(model, in_loop=True) == []
    for found in graphs.values():
        assert gpu_kernels.lacking(found, in_loop=True) == []
        assert gpu_kernels.lacking(found, in_loop=False) == []


def test_the_command_tells_and_fails_where_something_lacks_a_kernel(monkeypatch, capsys):
    found = gpu_kernels.operations(_graph(_smallest, _VECTOR), in_loop=True)
    monkeypatch.setattr(gpu_kernels, "of_tasks", lambda names, precision: [("a model", found)])
    monkeypatch.setattr(
        gpu_kernels, "of_methods", lambda names: [(n, collections.Counter()) for n in names]
    )
    assert gpu_kernels.main(["--methods=fedavg,afl"]) == 1
    printed = capsys.readouterr().out
    assert "| afl | 0 | 0 | none | none |" in printed
    assert "| none | NthElement[float32] |" in printed
    assert gpu_kernels.main(["--methods=", "--tasks="]) == 1
    monkeypatch.setattr(gpu_kernels, "of_tasks", lambda names, precision: [])
    assert gpu_kernels.main([]) == 0
