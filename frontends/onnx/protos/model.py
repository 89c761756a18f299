"""Decoding of ONNX files: protocol buffer, tensors, static input shapes.

External tensors obey the path rules of `files`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from attrs import frozen
from onnx import numpy_helper

from ....ir import Array, CutsWarning, DType, GraphError, TensorType, dtype_of_numpy, quote, raise_all, type_problem
from ...files import map_inside
from .local_functions import inline_functions
from .masks import convert_masked_writes
from .narrow_weights import widen_weights
from .order import sort_graph

MIN_OPSET = 1
MAX_BYTES = 1 << 31


class Opaque(GraphError):
    """Raised where a valid node has a form outside the vocabulary."""


@frozen
class OnnxModel:
    """Decoded model: main graph, operator set version, folder of external data.

    `opsets` has the versions of other domains too.
    """

    name: str
    graph: onnx.GraphProto
    opset: int
    folder: Path | None
    opsets: Mapping[str, int] = {}


def read_model(source: str | Path | bytes | onnx.ModelProto) -> OnnxModel:
    """Decode a model from a file, bytes or a protocol buffer.

    Model-local functions are inlined, nodes sorted, and masked writes become choices.

    Raises `GraphError` where the data is no model.
    """
    folder = None
    name = "<onnx>"
    if isinstance(source, onnx.ModelProto):
        model = source
    else:
        data = source
        if not isinstance(data, bytes):
            name, folder = str(data), Path(data).parent
            data = _read_bytes(Path(data))
        model = _decode(data, name)
    if not all(isinstance(text, str) for text in _texts(model.graph)):
        raise GraphError(f"{name}: not an ONNX model (or a damaged one): a name is not UTF-8")
    model = inline_functions(model, name)
    opsets = {"" if o.domain == "ai.onnx" else o.domain: o.version for o in model.opset_import}
    opset = _opset(model, name)
    graph = widen_weights(convert_masked_writes(sort_graph(model.graph)), opset, folder)
    return OnnxModel(name, graph, opset, folder, opsets)


def _texts(graph: onnx.GraphProto) -> Iterator[object]:
    """Yield every name of a graph and its subgraphs; a damaged one is bytes."""
    yield graph.name
    for value in (*graph.input, *graph.output, *graph.initializer):
        yield value.name
    for value in graph.input:
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            yield from _texts(attribute.g) if attribute.HasField("g") else ()


def _read_bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size >= MAX_BYTES:
            raise GraphError(
                f"{path}: expected less than {MAX_BYTES} bytes", hint="keep large weights as external data"
            )
        return path.read_bytes()
    except OSError as error:
        raise GraphError(f"{path}: {error.strerror}") from error


def _decode(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception:  # protobuf's DecodeError, whose package carries no types
        raise GraphError(f"{name}: not an ONNX model (or a truncated one)") from None
    if not model.HasField("graph") or not model.opset_import:
        raise GraphError(f"{name}: not an ONNX model: it has no graph or no operator set")
    return model


def _opset(model: onnx.ModelProto, name: str) -> int:
    newest = onnx.defs.onnx_opset_version()
    version = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=newest)
    if not MIN_OPSET <= version <= newest:
        raise GraphError(
            f"{name}: expected an operator set from {MIN_OPSET} to {newest}, found {version}", hint="convert the model"
        )
    return version


def element_type(code: int, where: str) -> DType:
    """Return the element type of an ONNX type code.

    Raises `Opaque` for an unsupported one.
    """
    try:
        dtype = dtype_of_numpy(onnx.helper.tensor_dtype_to_np_dtype(code))
    except (KeyError, TypeError, ValueError):
        dtype = None
    if dtype is None:
        names = {code: name for name, code in onnx.TensorProto.DataType.items()}
        raise Opaque(
            f"{where}: element type {names.get(code, code)} is not supported",
            hint="convert the model to float32, float16 or bfloat16",
        )
    return dtype


def tensor_array(tensor: onnx.TensorProto, folder: Path | None, where: str) -> Array:
    """Return the elements of a tensor, mapped where they are external.

    Raises `GraphError` where the data does not fit the type.
    """
    dtype = element_type(tensor.data_type, where)
    type_ = TensorType(dtype, tuple(tensor.dims))
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return _external_array(tensor, type_, folder, where)
    try:
        array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise GraphError(f"{where}: its data does not fit {type_}: {error}") from None
    if dtype_of_numpy(array.dtype) is not dtype or array.shape != type_.shape:
        raise GraphError(f"{where}: expected {type_}, found data of {array.dtype}{list(array.shape)}")
    return array


def _external_array(tensor: onnx.TensorProto, type_: TensorType, folder: Path | None, where: str) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if folder is None or "location" not in entries:
        raise GraphError(f"{where}: its external data cannot be found", hint="load the model from its file")
    try:
        offset, length = int(entries.get("offset", 0)), int(entries.get("length", type_.nbytes))
    except ValueError:
        offset = length = -1
    data = map_inside(folder, entries["location"])
    if offset < 0 or length != type_.nbytes or offset + length > len(data):
        given = f"offset {entries.get('offset', '0')}, length {entries.get('length', 'absent')}"
        found = f"{given} in a file of {len(data)} bytes"
        raise GraphError(f"{where}: expected {type_.nbytes} bytes of external data for {type_}, found {found}")
    return np.frombuffer(data, type_.dtype.numpy, count=type_.size, offset=offset).reshape(type_.shape)


def initialisers(model: OnnxModel) -> dict[str, Array]:
    """Return the arrays of the main graph's initialisers.

    All that cannot be decoded are reported.
    """
    arrays: dict[str, Array] = {}
    errors = []
    for tensor in model.graph.initializer:
        try:
            arrays[tensor.name] = tensor_array(tensor, model.folder, f"{model.name}: initialiser {quote(tensor.name)}")
        except GraphError as error:
            errors.append(error)
    sparse = [quote(tensor.values.name) for tensor in model.graph.sparse_initializer]
    raise_all(
        [*errors, *(GraphError(f"{model.name}: initialiser {name} is sparse", hint="make it dense") for name in sparse)]
    )
    return arrays


def input_types(
    model: OnnxModel, known: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]
) -> dict[str, TensorType]:
    """Return the static types of the inputs that are no initialisers.

    `shapes` fixes dynamic ones. A dim that shares its symbol with a given one takes that one's extent. A first axis
    that stays dynamic is a batch of 1.

    Raises `GraphError` where a rank is unknown, or a type is not supported.
    """
    inputs = {v.name: v for v in model.graph.input if v.name not in known}
    raise_all(list(_foreign_shapes(model, inputs, shapes)))
    symbols = _symbols(inputs, shapes)
    types: dict[str, TensorType] = {}
    errors = []
    for name, value in inputs.items():
        where = f"{model.name}: input {quote(name)}"
        try:
            if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
                raise GraphError(f"{where}: expected a tensor of known rank")
            shape = shapes[name] if name in shapes else _static_shape(value, symbols, where)
            types[name] = TensorType(
                element_type(value.type.tensor_type.elem_type, where), tuple(int(e) for e in shape)
            )
            if problem := type_problem(types[name]):
                raise GraphError(f"{where}: {problem}")
        except GraphError as error:
            errors.append(error)
    raise_all(errors)
    return types


def _dims(value: onnx.ValueInfoProto) -> Sequence[Any]:
    return list(value.type.tensor_type.shape.dim)


def _is_static(dim: Any) -> bool:
    """Return whether a dim is static; some exporters write -1 for a dynamic one."""
    return bool(dim.HasField("dim_value") and dim.dim_value >= 0)


def _dim_text(dim: Any) -> str:
    return str(dim.dim_value) if _is_static(dim) else dim.dim_param or "?"


def _symbols(inputs: Mapping[str, onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the extent of each symbol by the given shapes, without ambiguous symbols."""
    found: dict[str, set[int]] = {}
    for name, shape in shapes.items():
        for dim, extent in zip(_dims(inputs[name]), shape, strict=False):
            if dim.dim_param:
                found.setdefault(dim.dim_param, set()).add(extent)
    return {symbol: extents.pop() for symbol, extents in found.items() if len(extents) == 1}


def _foreign_shapes(
    model: OnnxModel, inputs: Mapping[str, onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int]]
) -> Iterator[GraphError]:
    for name, shape in shapes.items():
        if name not in inputs:
            known = ", ".join(map(quote, inputs))
            yield GraphError(
                f"{model.name}: shape given for {quote(name)}, which is no input", hint=f"inputs are {known}"
            )
            continue
        if not inputs[name].type.HasField("tensor_type"):
            continue  # reported with the types
        dims = _dims(inputs[name])
        fits = len(dims) == len(shape) and all(
            e >= 0 and (not _is_static(d) or d.dim_value == e) for d, e in zip(dims, shape, strict=True)
        )
        if not fits:
            declared = ", ".join(map(_dim_text, dims))
            yield GraphError(
                f"{model.name}: input {quote(name)}: expected a shape like [{declared}], found {list(shape)}"
            )


def _static_shape(value: onnx.ValueInfoProto, symbols: Mapping[str, int], where: str) -> tuple[int, ...]:
    shape: list[int] = []
    for axis, dim in enumerate(_dims(value)):
        if _is_static(dim):
            shape.append(dim.dim_value)
        elif dim.dim_param in symbols:
            shape.append(symbols[dim.dim_param])
        elif axis == 0:
            shape.append(1)
        else:
            declared = ", ".join(map(_dim_text, _dims(value)))
            raise GraphError(
                f"{where}: shape [{declared}] is dynamic", hint=f"fix it, as in --shape {value.name}={_example(value)}"
            )
    if (first := next(iter(_dims(value)), None)) is not None and not (_is_static(first) or first.dim_param in symbols):
        text = f"{where}: its first axis {quote(first.dim_param or '?')} is dynamic and is taken as 1"
        hint = f"fix it, as in --shape {value.name}={_example(value)} (shapes= of cuts.build)"
        warnings.warn(f"{text}; {hint}", CutsWarning, stacklevel=2)
    return tuple(shape)


def _example(value: onnx.ValueInfoProto) -> str:
    return "x".join(str(d.dim_value) if _is_static(d) else "1" if n == 0 else "?" for n, d in enumerate(_dims(value)))
