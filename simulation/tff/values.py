"""Arguments and results of TFF computations, from a user's values to the interpreter's and back."""

import collections
import typing
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from simulation.device import eager_tensors
from tff_algos.client_data import Gathered
from tff_suite.compat import (
    array,
    computation_types,
    py_typecheck,
    tensorflow_utils,
    type_conversions,
    value_serialization,
)

_ARRAY_TYPES = typing.get_args(array.Array)
# Arrays of numbers in these forms become tensors only when a graph uses them.
ARRAYS = (np.ndarray, Gathered)


class AllEqual:
    """A value that is the same at every client."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value


def per_client(value: Any, num_clients: int) -> list:
    """Returns a client-placed value as a list with an entry for each client."""
    return [value.value] * num_clients if type(value) is AllEqual else value


def _tensor_ingester(  # noqa: C901
    type_spec: tff.TensorType, where: str, keep_arrays: bool
) -> Callable:
    np_dtype = type_spec.dtype.type
    dtype = tf.as_dtype(np_dtype)
    dims = type_spec.shape
    is_number = np.dtype(np_dtype).kind in "biufc"

    def fail(found):
        raise TypeError(f"{where} must be a tensor of type {type_spec}, found {found}.")

    def ingest_array(value):
        return value if keep_arrays else eager_tensors.copy_of(value)

    def ingest_value(value):
        if type(value) in ARRAYS and value.dtype == np_dtype:
            return ingest_array(value)
        if isinstance(value, Gathered):
            value = np.asarray(value)
        if isinstance(value, tf.Variable):
            value = eager_tensors.lean(value.read_value())
        if tf.is_tensor(value):
            if value.dtype != dtype:
                fail(f"dtype {value.dtype.name}")
            return value
        if isinstance(value, (list, tuple)):
            if not all(array.is_compatible_dtype(x, np_dtype) for x in tf.nest.flatten(value)):
                fail(f"{value!r:.200}")
            value = np.asarray(value, np_dtype)
        if not isinstance(value, _ARRAY_TYPES):
            fail(type(value))
        if not array.is_compatible_dtype(value, np_dtype):
            fail(f"dtype {getattr(value, 'dtype', type(value).__name__)}")
        if is_number:
            return ingest_array(np.asarray(value, np_dtype))
        return eager_tensors.lean(tf.constant(value, dtype))

    def ingest(value, cohort_sizes):
        del cohort_sizes
        ingested = ingest_value(value)
        if dims is not None:
            found = list(ingested.shape)
            if len(found) != len(dims) or any(
                d not in (None, f) for d, f in zip(dims, found, strict=True)
            ):
                fail(f"shape {found}")
        return ingested

    return ingest


def _struct_ingester(type_spec: tff.StructType, where: str, keep_arrays: bool) -> Callable:
    elements = list(tff.structure.iter_elements(type_spec))
    names = [name for name, _ in elements]
    ingesters = [
        ingester(element, f"{where}.{name}" if name else f"{where}[{i}]", keep_arrays)
        for i, (name, element) in enumerate(elements)
    ]

    def fail(value):
        raise TypeError(f"{where} must be a structure of type {type_spec}, found {value!r:.200}.")

    def ingest(value, cohort_sizes):
        if isinstance(value, tff.structure.Struct):
            found = tff.structure.name_list_with_nones(value)
            if len(found) != len(names) or any(
                f not in (n, None) for f, n in zip(found, names, strict=True)
            ):
                fail(value)
        elif isinstance(value, Mapping):
            if len(value) != len(names) or any(name not in value for name in names):
                fail(value)
            value = [value[name] for name in names]
        elif attrs.has(type(value)):
            found = [field.name for field in attrs.fields(type(value))]
            if found != names:
                fail(value)
            value = [getattr(value, name) for name in names]
        elif isinstance(value, (list, tuple)):
            found = getattr(value, "_fields", None)
            if len(value) != len(names) or (
                found is not None and any(names) and list(found) != names
            ):
                fail(value)
        else:
            fail(value)
        return tuple([ingest(x, cohort_sizes) for ingest, x in zip(ingesters, value, strict=True)])

    return ingest


def _sequence_ingester(type_spec: tff.SequenceType, where: str) -> Callable:
    accepted_specs = collections.deque(maxlen=1)

    def ingest(value, cohort_sizes):
        del cohort_sizes
        if isinstance(value, list):
            value = tensorflow_utils.make_data_set_from_elements(None, value, type_spec.element)
        if not isinstance(value, tf.data.Dataset):
            raise TypeError(
                f"{where} must be a tf.data.Dataset of {type_spec}, found {type(value)}."
            )
        # Clients' data sets have equal specs; comparing specs is far cheaper than making TFF types.
        if value.element_spec not in accepted_specs:
            element = computation_types.tensorflow_to_type(value.element_spec)
            value_serialization._check_container_compat_with_tf_nest(element)
            if not type_spec.is_assignable_from(tff.SequenceType(element)):
                raise TypeError(
                    f"{where} must be a tf.data.Dataset of {type_spec}, found elements of type "
                    f"{element}."
                )
            accepted_specs.append(value.element_spec)
        return tf.data.experimental.to_variant(value)

    return ingest


def _federated_ingester(type_spec: tff.FederatedType, where: str) -> Callable:
    if type_spec.placement is tff.SERVER:
        return ingester(type_spec.member, where)
    if type_spec.all_equal:
        ingest_member = ingester(type_spec.member, where)
        return lambda value, cohort_sizes: AllEqual(ingest_member(value, cohort_sizes))

    ingest_member = ingester(type_spec.member, where, keep_arrays=True)

    def ingest(value, cohort_sizes):
        if not isinstance(value, (list, tuple)):
            raise TypeError(
                f"{where} must be a list with an entry for each client, of type {type_spec}; found "
                f"{type(value)}."
            )
        cohort_sizes.add(len(value))
        return [ingest_member(member, cohort_sizes) for member in value]

    return ingest


def ingester(type_spec: tff.Type, where: str, keep_arrays: bool = False) -> Callable:
    """Returns a function `(value, cohort_sizes)` from a user's value to the interpreter's.

    The function adds the number of clients of every client-placed value to the set `cohort_sizes`.
    It raises a `TypeError` for a value that does not have type `type_spec`, in which `where` names
    the value. With `keep_arrays`, arrays of numbers become tensors only when a graph uses them.
    """
    if isinstance(type_spec, tff.TensorType):
        return _tensor_ingester(type_spec, where, keep_arrays)
    if isinstance(type_spec, tff.StructType):
        return _struct_ingester(type_spec, where, keep_arrays)
    if isinstance(type_spec, tff.SequenceType):
        return _sequence_ingester(type_spec, where)
    if isinstance(type_spec, tff.FederatedType):
        return _federated_ingester(type_spec, where)
    raise NotImplementedError(f"{where} of type {type_spec} cannot be passed to a computation.")


def _struct_egester(type_spec: tff.StructType) -> Callable:
    elements = list(tff.structure.iter_elements(type_spec))
    names = [name for name, _ in elements]
    egesters = [egester(element) for _, element in elements]
    container = type_spec.python_container
    if any(names) and not all(names):
        raise ValueError(f"No Python container holds both named and unnamed elements: {type_spec}.")
    if container is None:
        container = collections.OrderedDict if any(names) else tuple

    def values(value):
        return [egest(x) for egest, x in zip(egesters, value, strict=True)]

    if not any(names):
        return lambda value: container(values(value))
    if isinstance(container, py_typecheck.SupportsNamedTuple) or attrs.has(container):
        return lambda value: container(**dict(zip(names, values(value), strict=True)))
    return lambda value: container(zip(names, values(value), strict=True))


def _sequence_egester(type_spec: tff.SequenceType) -> Callable:
    spec = type_conversions.type_to_tf_structure(type_spec.element)

    def egest(value):
        dataset = tf.data.experimental.from_variant(value, spec)
        return tensorflow_utils.coerce_dataset_elements_to_tff_type_spec(dataset, type_spec.element)

    return egest


def egester(type_spec: tff.Type) -> Callable:
    """Returns a function from the interpreter's value of `type_spec` to the user's."""
    if isinstance(type_spec, tff.TensorType):
        return lambda v: v[()].copy() if type(v) is np.ndarray else v.numpy()
    if isinstance(type_spec, tff.StructType):
        return _struct_egester(type_spec)
    if isinstance(type_spec, tff.SequenceType):
        return _sequence_egester(type_spec)
    if isinstance(type_spec, tff.FederatedType):
        egest_member = egester(type_spec.member)
        if type_spec.placement is tff.SERVER:
            return egest_member
        if type_spec.all_equal:
            return lambda value: egest_member(value.value)
        return lambda value: [egest_member(member) for member in value]
    raise NotImplementedError(f"A computation cannot return a value of type {type_spec}.")
