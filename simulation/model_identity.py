"""The identity of Keras models and other TensorFlow objects: settings, wiring, weights, graphs.

It is described by texts and digests that are the same in every process, see
`tff_suite.code_digests`.
"""

import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tff_suite import code_digests, code_texts

# Keys of a Keras configuration that do not affect results: names, which are numbered per process,
# and initializers, since the initial weights themselves are compared.
_NOT_OF_LAYERS = re.compile(
    r"name|.*_?initializer|module|registered_name|build_config|compile_config|.*_layers|layers"
    r"|function|function_type|output_shape_.*|shared_object_id"
)
# Initial weights can differ in their last bits between machines, which compute matrix
# decompositions in different order.
_LAST_BITS = 1e-6
_NUMBER = r"(-?[\d.]+e[-+]\d+|-?inf|nan)"
# What `describe_weights` returns: shapes, digest, norm and sum.
_WEIGHTS = re.compile(rf"(.*) #\w+ {_NUMBER} {_NUMBER}")
# Numbers of a weight that are processed at a time.
_CHUNK = 1 << 20


def is_keras_model(value: Any) -> bool:
    """Returns whether an object is a Keras model; imports nothing."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    return isinstance(value, tf.keras.Model)


def look_at_library_object(describer: code_digests.Describer, name: str, value: Any) -> bool:
    """Describes an object of TensorFlow or Keras; returns whether it is one."""
    if "tensorflow" not in sys.modules:
        return False
    import tensorflow as tf

    keras = tf.keras
    if isinstance(value, tf.Tensor | tf.Variable):
        array = value.numpy() if hasattr(value, "numpy") else None
        text = "a tensor" if array is None else code_digests.describe_array(array)
        describer.tell(name, text)
    elif isinstance(value, keras.Model):
        inner = of_model(value, describer)
        describer.tell(name, f"Keras model {code_texts.digest(json.dumps(inner))}")
    elif isinstance(value, keras.layers.Layer):
        describer.tell(name, f"{type(value).__name__} object")
        _look_at_layer(describer, name, value)
    elif isinstance(value, _configured(keras)):
        describer.tell(name, f"{type(value).__name__} object")
        _look_at_config(describer, name, value)
        _look_at_own_parts(describer, name, value)
    elif isinstance(value, tf.types.experimental.ConcreteFunction):
        describer.tell(name, f"graph {_graph_digest(value.graph)}")
    elif isinstance(value, tf.types.experimental.GenericFunction):
        _look_at_tf_function(describer, name, value)
    elif isinstance(value, tf.data.Dataset):
        describer.tell(name, "a tf.data.Dataset")
    else:
        return False
    return True


def _configured(keras):
    return (
        keras.losses.Loss,
        keras.optimizers.Optimizer,
        keras.optimizers.legacy.Optimizer,
        keras.optimizers.schedules.LearningRateSchedule,
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
        keras.initializers.Initializer,
    )


def _look_at_tf_function(describer, name, value):
    """Describes the Python code of a `tf.function`; if it was loaded from a file, its graphs."""
    python = getattr(value, "python_function", None)
    traced = getattr(value, "concrete_functions", None)
    if traced is None:
        describer.look(name, python)
        return
    graphs = sorted(_graph_digest(f.graph) for f in traced)
    describer.tell(name, f"graphs {code_texts.digest(json.dumps(graphs))}")


def _look_at_config(describer, name, value):
    try:
        config = value.get_config()
    except Exception:  # Users write `get_config`, which may raise anything.
        return
    for key, part in sorted(_without_names(config).items()):
        if part is None:
            continue
        describer.look(f"{name}, {key}", part)


def _without_names(config):
    if isinstance(config, Mapping):
        return {
            key: _without_names(value)
            for key, value in config.items()
            if not _NOT_OF_LAYERS.fullmatch(str(key))
        }
    if isinstance(config, list | tuple):
        return [_without_names(value) for value in config]
    return config


def _look_at_own_parts(describer, name, value):
    """Describes objects of a user's own classes, and users' functions in other objects."""
    own = describer.is_users(type(value))
    if own:
        describer.look(f"{name}, its class", type(value))
    plain = bool | int | float | complex | str | np.ndarray | list | tuple | dict
    for key, inner in sorted(code_digests.state_of(value).items()):
        if (key.startswith("_") and key not in ("_fn_kwargs",)) or key in ("name", "built"):
            continue
        is_function = callable(inner) and describer.is_users(inner)
        if is_function or (own and isinstance(inner, plain) and _is_plain(inner)):
            describer.look(f"{name}, {key}", inner)


def _is_plain(value: Any) -> bool:
    """Returns whether a value consists only of numbers and texts, at any depth."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int | float | complex | str | np.ndarray | np.generic)


def _look_at_layer(describer, name, layer):
    _look_at_config(describer, name, layer)
    _look_at_own_parts(describer, name, layer)
    arrays = [v.numpy() for v in (*layer._trainable_weights, *layer._non_trainable_weights)]
    if arrays:
        describer.tell(f"{name}, initial weights", describe_weights(arrays))


def of_model(keras_model: Any, describer: code_digests.Describer) -> dict[str, str]:
    """Returns the identity of a Keras model: layers, settings, wiring and initial weights.

    Args:
      keras_model: The model, built.
      describer: Describes the user's code in it.

    Returns:
      `layers`, `layer 1 (dense), units`, `wiring`, ... → value as text, or digest.
    """
    layers = list(keras_model._flatten_layers(recursive=True, include_self=False))
    kinds = [type(layer).__name__.lower() for layer in layers]
    names = _layer_names(kinds)
    # Plain values are listed individually; code and values of functions go to the run's identity.
    inner = code_digests.Describer([look_at_library_object], describer.packages)
    for name, layer in zip(names, layers, strict=True):
        _look_at_layer(inner, name, layer)
    inner.tell("the model itself", type(keras_model).__name__)
    _look_at_own_parts(inner, "the model itself", keras_model)
    own = [*keras_model._trainable_weights, *keras_model._non_trainable_weights]
    if own:
        inner.tell("the model itself, initial weights", describe_weights([v.numpy() for v in own]))
    if _is_revived(keras_model):
        inner.tell("graph", _call_digest(keras_model))
    for module, parts in inner.found.code.items():
        describer.found.code.setdefault(module, {}).update(parts)
    index = {id(layer): i for i, layer in enumerate(layers)}
    models = [keras_model, *layers]
    wiring = [_wiring(m, index) for m in models if getattr(m, "_nodes_by_depth", None)]
    told = {"layers": ", ".join(kinds), **inner.found.values}
    return told | ({"wiring": code_texts.digest(json.dumps(wiring))} if wiring else {})


def _layer_names(kinds: Any) -> list[str]:
    """Returns names for layers, numbered from 1; input layers are numbered separately."""
    names, numbers = [], {True: 0, False: 0}
    for kind in kinds:
        is_input = kind == "inputlayer"
        numbers[is_input] += 1
        names.append(f"input {numbers[True]}" if is_input else f"layer {numbers[False]} ({kind})")
    return names


def _wiring(model, index):
    """Describes the connections of a functional model's layers, and the arguments of calls."""
    import tensorflow as tf

    def told(value):
        if isinstance(value, Mapping):
            return {str(k): told(v) for k, v in sorted(value.items())}
        if isinstance(value, list | tuple):
            return [told(v) for v in value]
        if isinstance(value, bool | int | float | str | None):
            return value
        if isinstance(value, np.ndarray | np.generic):
            return code_digests.describe_array(np.asarray(value))
        if isinstance(value, tf.Tensor | tf.Variable) and hasattr(value, "numpy"):
            return code_digests.describe_array(value.numpy())
        return type(value).__name__

    nodes = []
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            inbound = [
                (index.get(id(layer), -1), node_index, tensor_index)
                for layer, node_index, tensor_index, _ in node.iterate_inbound()
            ]
            arguments = () if node.is_input else (node.call_args, node.call_kwargs)
            nodes.append([index.get(id(node.layer), -1), inbound, told(arguments)])
    ends = [
        [index.get(id(t._keras_history.layer), -1), t._keras_history.tensor_index]
        for t in (*model.inputs, *model.outputs)
    ]
    return [nodes, ends]


def _is_revived(model: Any) -> bool:
    """Returns whether a model was loaded without its original classes."""
    layers = [model, *model._flatten_layers(recursive=True, include_self=False)]
    return any("saved_model" in type(layer).__module__ for layer in layers)


def _call_digest(model: Any) -> str:
    import tensorflow as tf

    if model.inputs:
        arguments = [tf.TensorSpec(t.shape, t.dtype) for t in model.inputs][:1]
    else:
        saved = model.save_spec()
        if saved is None:
            return "unknown"
        arguments = list(saved[0])
    return _graph_digest(tf.function(lambda x: model(x)).get_concrete_function(*arguments).graph)


def _graph_digest(graph: Any) -> str:
    """Returns a digest of a traced graph, independent of the names of nodes and functions."""
    definition = graph.as_graph_def()
    functions = {f.signature.name: f for f in definition.library.function}

    def attributes(node):
        told = {}
        for key, value in sorted(node.attr.items()):
            if key.startswith("_") or key in ("shared_name", "container"):
                continue
            if value.HasField("func"):
                told[key] = of_function(value.func.name)
            else:
                told[key] = code_texts.digest(value.SerializeToString(deterministic=True))
        return told

    def of_nodes(nodes, inputs):
        places = {name: str(i) for i, name in enumerate(inputs)}
        places |= {node.name: f"n{i}" for i, node in enumerate(nodes)}

        def place(name):
            head, *rest = name.lstrip("^").split(":")
            return ":".join([places.get(head, head), *rest])

        return [[n.op, [place(i) for i in n.input], attributes(n)] for n in nodes]

    def of_function(name):
        if name not in functions:
            return name
        found = functions[name]
        arguments = [a.name for a in found.signature.input_arg]
        return code_texts.digest(json.dumps(of_nodes(found.node_def, arguments)))

    return code_texts.digest(json.dumps(of_nodes(definition.node, [])))


def describe_weights(arrays: Sequence[np.ndarray]) -> str:
    """Returns shapes, a digest, and numbers that distinguish weights except for their last bits.

    Args:
      arrays: Weights.

    Returns:
      `shapes #digest norm sum`, where `sum` is a weighted sum of all weights with fixed factors.
    """
    shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in arrays)
    content, squares, total, at = hashlib.sha256(), 0.0, 0.0, 0
    for array in arrays:
        flat = np.ascontiguousarray(array).ravel()
        content.update(flat.tobytes())
        for start in range(0, flat.size if flat.dtype.kind in "biuf" else 0, _CHUNK):
            some = flat[start : start + _CHUNK].astype(np.float64)
            # The factors are not periodic, so that exchanging two weights changes the sum.
            total += float(some @ np.cos((at + np.arange(1.0, some.size + 1)) ** 1.5))
            squares += float(some @ some)
            at += some.size
    return f"{shapes} #{content.hexdigest()[:16]} {math.sqrt(squares):.9e} {total:.9e}"


def same_weights(before: str, now: str) -> bool:
    """Returns whether two texts of `describe_weights` describe equal weights, except last bits.

    Any other text describes none, so it only equals itself.
    """
    if before == now:
        return True
    was, is_ = _WEIGHTS.fullmatch(before), _WEIGHTS.fullmatch(now)
    if was is None or is_ is None or was[1] != is_[1]:
        return False
    (norm, total), (other_norm, other_total) = was.groups()[1:], is_.groups()[1:]
    bound = _LAST_BITS * max(abs(float(norm)), 1e-30)
    close = abs(float(norm) - float(other_norm)), abs(float(total) - float(other_total))
    return max(close) <= bound


def names_of_weights(model: Mapping[str, str]) -> list[str]:
    """Returns the keys of `of_model`'s result that describe initial weights."""
    return [name for name in model if name.endswith("initial weights")]
