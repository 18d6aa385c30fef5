"""Refuses models by the graph of one call: what would change state or draw without a seed."""

import sys
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tff_algos.keras_models.functional import DRAW, as_function
from tff_algos.model import ModelError
from tff_suite import code_places, compat, graph_defs
from tff_suite.compat import op_def_registry  # The only list of stateful ops.

losses_utils = compat.keras_source("utils.losses_utils")

# Containers are declared stateful because of what they may hold; what they hold is looked at.
# Reading a variable changes nothing, nor does `tf.debugging.check_numerics`.
_HARMLESS_STATEFUL_OPS = frozenset(
    [
        "StatefulPartitionedCall",
        "While",
        "If",
        "Case",
        "Assert",
        "CheckNumerics",
        "ReadVariableOp",
        "ResourceGather",
        "VarHandleOp",
    ]
)


def trace_model(
    keras_model: tf.keras.Model, layers: Sequence[tf.keras.layers.Layer], x_spec: tf.TensorSpec
) -> tuple[Any, tf.TensorSpec, tf.TensorSpec | None]:
    """Traces a model, and refuses what is not a pure function of its weights.

    Args:
      keras_model: The model.
      layers: All its layers.
      x_spec: Batch of inputs.

    Returns:
      The definition of its graph, a batch of outputs, and one of their mask or `None`.
    """
    # Non-trainable weights stay variables here, so that an assignment to one shows as such.
    apply, masks, adds_losses = as_function(keras_model, layers), [], []
    weight_specs = [tf.TensorSpec(v.shape, v.dtype) for v in keras_model.trainable_variables]

    def called(weights, x, seed):
        found = []
        for training in (True, False):  # A layer may do something in inference only.
            outputs, _ = apply(weights, x, training, seed)
            found.append(outputs)
            masks.append(losses_utils.get_mask(outputs))
            # Those of a functional model's own graph, and those of the call.
            for layer in (keras_model, *layers):
                adds_losses.extend(getattr(layer, "_losses", ()))
                adds_losses.extend(getattr(layer, "_eager_losses", ()))
        return found

    try:
        traced = tf.function(called, autograph=False).get_concrete_function(
            weight_specs, x_spec, tf.TensorSpec([2], tf.int32)
        )
    except Exception as e:  # It is the user's, and may raise anything.
        # Keras puts the arguments of the call behind what went wrong.
        told = " ".join(str(e).partition("Call arguments received")[0].split())[:300]
        tensors_value = tf.errors.OperatorNotAllowedInGraphError, AttributeError
        if isinstance(e, tensors_value) and compat.is_about_a_tensors_value(e):
            raise ModelError(
                f"Model {keras_model.name!r} needs a tensor's value while it is traced, so it is "
                f"not a pure function of its weights; replace the layer: {told}"
            ) from e
        raise ModelError(
            f"Model {keras_model.name!r} fails when tensors take the place of its variables; let "
            f"`call` use weights as tensors, without value(), numpy() or a tape on them: {told}"
        ) from e
    for outputs in traced.structured_outputs:
        if not isinstance(outputs, tf.TensorSpec) and not tf.is_tensor(outputs):
            number = len(tf.nest.flatten(outputs))
            if number == 1:
                raise ModelError(
                    f"Model {keras_model.name!r} returns its output within a "
                    f"{type(outputs).__name__}; let it return the tensor itself."
                )
            raise ModelError(
                f"Model {keras_model.name!r} has {number} outputs; it must have one tensor, which "
                "the loss is a function of: concatenate them."
            )
    if adds_losses:
        raise ModelError(
            f"Model {keras_model.name!r} adds losses while it is called, which is not supported; "
            "add them to the loss function."
        )
    refuse_read_weights(keras_model, traced, "The model")
    names, graph_def = {layer.name for layer in layers}, traced.graph.as_graph_def()
    refuse_stateful_ops(traced.graph, names)
    _refuse_draws_in_loops(graph_def, names)
    outputs, mask = traced.structured_outputs[0], masks[0]
    mask_spec = None if mask is None else tf.TensorSpec(mask.shape, mask.dtype)
    return graph_def, tf.TensorSpec(outputs.shape, outputs.dtype), mask_spec


def refuse_stateful_ops(graph: tf.Graph, names: Collection[str]) -> None:
    """Refuses operations that change variables or draw from generators without a seed.

    Args:
      graph: Graph of a model.
      names: Names of its layers, for the message.

    Raises:
      ModelError: If the graph has such an operation.
    """
    graph = graph.as_graph_def()
    bodies = {f.signature.name for f in graph.library.function}
    for node in graph_defs.nodes(graph):
        # Keras calls cuDNN's recurrent layers without dropout, so nothing in them is random.
        if node.op in bodies or node.op in _HARMLESS_STATEFUL_OPS or "CudnnRNN" in node.op:
            continue
        if not op_def_registry.get(node.op).is_stateful:
            continue
        if node.op == "CheckNumericsV2":
            raise ModelError(
                "TFF's workers do not have the operations that tf.debugging.enable_check_numerics "
                "adds to every graph: call tf.debugging.disable_check_numerics before. A round's "
                "metric clients_dropped counts clients whose numbers are not finite."
            )
        path = [part for part in node.name.split("/") if part in names]
        layer = path[-1] if path else node.name
        if "Assign" in node.op:
            raise ModelError(
                f"Layer {layer!r} changes a variable while it runs ({node.op}), so the model is "
                "not a function of its trainable weights. Replace the layer (for example "
                "BatchNormalization by GroupNormalization), set its `trainable` to False, or "
                "leave out stateful=True of a recurrent layer."
            )
        if "LookupTable" in node.op:
            raise ModelError(
                f"Layer {layer!r} reads a table ({node.op}), which is not part of the model; "
                "apply it to the data before."
            )
        raise ModelError(
            f"Layer {layer!r} uses the stateful operation {node.op}, which no seed controls: "
            "replace the layer (Dropout, SpatialDropout and layers whose `call` takes `uniform` "
            "are supported) or remove it."
        )


def has_own_gradients(graph_def: Any, layers: Sequence[tf.keras.layers.Layer]) -> bool:
    """Returns whether code of the user defines gradients; that of others passes weights to them."""
    names = {layer.name for layer in layers}
    own = {layer.name for layer in layers if not _is_of_others(type(layer))}
    for node in graph_defs.nodes(graph_def):
        # TensorFlow leaves the gradient's name at an operation without effect.
        if node.attr["_gradient_op_type"].s.startswith(b"CustomGradient"):
            path = [part for part in node.name.split("/") if part in names]
            if not path or path[-1] in own:
                return True
    return False


def _is_of_others(kind):
    """Returns whether a layer's class is Keras's or the suite's, and holds no user's code."""
    if compat.is_of_keras(kind):
        return not issubclass(kind, tf.keras.layers.Lambda)
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return code_places.is_suites(kind.__module__, path)


def _refuse_draws_in_loops(graph_def, names):
    """Refuses layers that draw by the seed within a loop, whose steps would all draw the same."""
    for node in _nodes_in_loops(graph_def):
        path = node.name.split("/")
        if DRAW in path:
            layer = [node.name, *(part for part in path if part in names)][-1]
            raise ModelError(
                f"Layer {layer!r} draws within a loop of TensorFlow (tf.map_fn, tf.while_loop, "
                "a recurrent layer), whose steps would all draw the same numbers. Draw before "
                "the loop, or set unroll=True of a recurrent layer."
            )


def _nodes_in_loops(graph_def):
    bodies = {f.signature.name: f.node_def for f in graph_def.library.function}
    called, seen = [], set()
    for node in graph_defs.nodes(graph_def):
        if "While" in node.op:
            called.append(node.attr["body"].func.name)
        # Of `tf.vectorized_map`, which leaves no loop.
        if any(part.startswith("loop_body") for part in node.name.split("/")):
            yield node
    while called:
        body = called.pop()
        if body not in seen:
            seen.add(body)
            yield from bodies[body]
            attributes = (a for node in bodies[body] for a in node.attr.values())
            called += [a.func.name for a in attributes if a.func.name in bodies]


def calls_python(graph_def: Any) -> bool:
    """Returns whether a graph calls functions of Python."""
    return any("PyFunc" in node.op for node in graph_defs.nodes(graph_def))


def refuse_read_weights(keras_model: tf.keras.Model, traced: Any, what: str) -> None:
    """Refuses a graph that reads a trainable weight itself and not the one that it is given.

    That weight would stay as it is: it would get no gradient, and nothing would tell.
    """
    captured = {id(tensor) for tensor in traced.captured_inputs}
    for variable in keras_model.trainable_variables:
        if id(variable.handle) in captured:
            raise ModelError(
                f"{what} reads the weight {variable.name!r} from outside its layer, so it would "
                "not train. Read it only as an attribute of a layer, in that layer's `call`."
            )
