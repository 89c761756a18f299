"""Operations that ONNX defines by function bodies.

An operation without a conversion is imported by its body. The bodies come with the `onnx` package. Some depend on the
operands' types. Their values are renamed, so that two uses never collide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import onnx

from ....ir import TensorType
from .contrib import contrib_body, has_contrib


def standard_schema(node: onnx.NodeProto, opset: int) -> Any:
    """Return the standard's schema of an operation, else None.

    There is none for other domains, or where this version does not know the operation.
    """
    if node.domain not in ("", "ai.onnx"):
        return None
    try:
        return onnx.defs.get_schema(node.op_type, opset)
    except onnx.defs.SchemaError:
        return None


def function_body(node: onnx.NodeProto, opset: int, types: Sequence[TensorType | None]) -> onnx.FunctionProto | None:
    """Return the standard's body for an operation at operand types, or None."""
    schema = standard_schema(node, opset)
    if schema is None:
        return contrib_body(node, [None if type_ is None else type_.shape for type_ in types])
    if schema.has_function:
        body = onnx.FunctionProto()
        body.ParseFromString(schema.function_body.SerializeToString())
        return body
    if not schema.has_context_dependent_function:
        return None
    protos = [_type_proto(type_).SerializeToString() for type_ in types]
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    if not versions:
        return None
    data = schema.get_context_dependent_function_with_opset_version(max(versions), node.SerializeToString(), protos)
    body = onnx.FunctionProto()
    body.ParseFromString(data)
    return body


def declared_name(op_type: str, declared: Collection[str]) -> str | None:
    """Return the caller's declared operation for an ONNX one, else None.

    It has the same name, or the name in lower case (`MyOp`, `my_op`).
    """
    lower = "".join(f"_{c.lower()}" if c.isupper() and n else c.lower() for n, c in enumerate(op_type))
    return next((name for name in (op_type, lower) if name in declared), None)


def has_function(node: onnx.NodeProto, opset: int) -> bool:
    """Return whether the standard defines an operation by a body.

    Some bodies hold for some operand types only.
    """
    schema = standard_schema(node, opset)
    if schema is None:
        return has_contrib(node)
    return bool(schema.has_function or schema.has_context_dependent_function)


def attribute_types(node: onnx.NodeProto, opset: int) -> dict[str, int]:
    """Return the standard's types of an operation's attributes, by name."""
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, "" if node.domain == "ai.onnx" else node.domain)
    except onnx.defs.SchemaError:
        return {}
    return {name: attribute.type.value for name, attribute in schema.attributes.items()}


def max_operands(node: onnx.NodeProto) -> int:
    """Return the operand limit of the newest version of an operation.

    For an unknown domain it is the number of operands of the node.
    """
    schema = standard_schema(node, onnx.defs.onnx_opset_version())
    return len(node.input) if schema is None else int(schema.max_input)


def _type_proto(type_: TensorType | None) -> onnx.TypeProto:
    if type_ is None:
        return onnx.TypeProto()
    code = onnx.helper.np_dtype_to_tensor_dtype(type_.dtype.numpy)
    return onnx.helper.make_tensor_type_proto(code, type_.shape)


def inline_body(node: onnx.NodeProto, body: onnx.FunctionProto, fresh: Callable[[str], str]) -> list[onnx.NodeProto]:
    """Return the nodes of a body with actual operands, results and attributes."""
    names: dict[str, str] = dict.fromkeys(body.input, "")
    names.update(zip(body.input, node.input, strict=False))
    names.update((formal, actual) for formal, actual in zip(body.output, node.output, strict=False) if actual)
    given = _defaults(node, body) | {a.name: a for a in node.attribute}
    label = node.name or next(iter(node.output), "")

    def rename(name: str) -> str:
        if name and name not in names:
            names[name] = fresh(f"{label}.{name}")
        return names.get(name, "")

    return [_instance(inner, rename, given, f"{label}/{inner.name or inner.op_type}") for inner in body.node]


def rename_values(node: onnx.NodeProto, rename: Callable[[str], str], name: str) -> onnx.NodeProto:
    """Return a node of a subgraph with its values renamed."""
    return _instance(node, rename, {}, name)


def _defaults(node: onnx.NodeProto, body: onnx.FunctionProto) -> dict[str, onnx.AttributeProto]:
    """Return the attribute defaults of the body or of the operation's declaration."""
    version = next(
        (o.version for o in body.opset_import if o.domain in ("", "ai.onnx")), onnx.defs.onnx_opset_version()
    )
    schema = standard_schema(node, version)
    declared = {} if schema is None else schema.attributes
    usual = {name: attribute.default_value for name, attribute in declared.items() if attribute.default_value.name}
    return usual | {attribute.name: attribute for attribute in body.attribute_proto}


def _instance(
    node: onnx.NodeProto, rename: Callable[[str], str], given: dict[str, onnx.AttributeProto], name: str
) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name = name
    copy.input[:] = [rename(value) for value in node.input]
    copy.output[:] = [rename(value) for value in node.output]
    del copy.attribute[:]
    copy.attribute.extend(_attributes(node.attribute, rename, given, name))
    return copy


def _attributes(
    attributes: Iterable[onnx.AttributeProto],
    rename: Callable[[str], str],
    given: dict[str, onnx.AttributeProto],
    name: str,
) -> Iterable[onnx.AttributeProto]:
    """Yield attributes with references resolved and the nodes of subgraphs renamed.

    An attribute whose reference is absent is left out.
    """
    for attribute in attributes:
        if attribute.ref_attr_name and attribute.ref_attr_name not in given:
            continue
        copy = onnx.AttributeProto()
        copy.CopyFrom(given[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        if not attribute.ref_attr_name:  # a graph that the caller gives has the caller's names
            for graph in ([copy.g] if copy.HasField("g") else []) + list(copy.graphs):
                inner = [_instance(node, rename, given, f"{name}/{node.op_type}") for node in graph.node]
                del graph.node[:], graph.value_info[:]
                graph.node.extend(inner)
                for value in (*graph.input, *graph.output, *graph.initializer):
                    value.name = rename(value.name)
        yield copy
