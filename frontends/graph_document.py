"""JSON document of a graph as classes, and its strict structuring.

These classes mirror `spec/graph.schema.json` field by field; `graph_json` gives them meaning. Nothing is coerced: a
number where a string belongs, an unknown key or a missing one is an error that carries the path to it
(`$.nodes[3].op`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_origin

import cattrs
from attrs import field, frozen, has
from cattrs.cols import homogenous_tuple_structure_factory
from cattrs.gen import make_dict_structure_fn, mapping_structure_factory

from ..ir import Attribute, DType, GraphError, Source, Span, attribute_of, raise_all
from .json_places import place_of, steps_of

FORMAT = "cuts.graph"
VERSION = 1
NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_SCALARS: dict[type, str] = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


@frozen
class Type:
    """Element type and shape of a computed value."""

    dtype: DType
    shape: tuple[int, ...]


@frozen
class Input:
    """A named, typed input."""

    name: str
    dtype: DType
    shape: tuple[int, ...]


@frozen
class Constant:
    """Named, typed constant with its elements in row-major order.

    `data` is None where the elements are in the weights file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: Any = None


@frozen
class Operation:
    """Node of a document.

    An input of null is an absent optional operand. `declaration` is the text of the operation where the vocabulary does
    not have it.
    """

    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Attribute] = field(factory=dict)
    origin: str = ""
    declaration: str = ""


@frozen
class GraphDocument:
    """Whole graph.json.

    `types` may give the types of computed values; `weights` names the safetensors file beside it.
    """

    format: str
    version: int
    name: str
    inputs: tuple[Input, ...]
    nodes: tuple[Operation, ...]
    outputs: tuple[str, ...]
    constants: tuple[Constant, ...] = ()
    types: dict[str, Type] = field(factory=dict)
    weights: str | None = None


def parse_document(text: str, name: str) -> GraphDocument:
    """Read a document from JSON text, reporting every field that is wrong.

    Raises `GraphError` where the text is not JSON, at the place in it, or no document.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        message = f"not JSON: {error.msg[0].lower()}{error.msg[1:]}"
        raise GraphError(message, Span(Source(name, text), error.pos, error.pos + 1)) from None
    except (RecursionError, ValueError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else error
        raise GraphError(f"{name}: not JSON that can be read: {why}") from None
    return structure_document(value, name, text)


def structure_document(value: object, name: str, text: str | None = None) -> GraphDocument:
    """Structure decoded JSON as a document, reporting every wrong field.

    Errors carry positions where `text` is given.

    Raises `GraphError` with all of them.
    """
    if isinstance(value, Mapping):
        for key, expected in (("format", FORMAT), ("version", VERSION)):
            if key in value and value[key] != expected:
                raise _misfit(name, text, f"$.{key}", f"expected {json.dumps(expected)}, found {show(value[key])}")
    try:
        return _CONVERTER.structure(value, GraphDocument)
    except Exception as failure:  # cattrs raises groups of the exceptions that hooks raise
        lines = cattrs.transform_error(failure, format_exception=_explain)
        raise_all(
            [_misfit(name, text, path, message) for message, _, path in (line.partition("\0 @ ") for line in lines)]
        )
        raise


def _misfit(name: str, text: str | None, path: str, message: str) -> GraphError:
    """Return the error for a wrong field of a document."""
    if text is None:
        return GraphError(f"{name}: at {path}: {message}")
    return GraphError(f"at {path}: {message}", Span(Source(name, text), *place_of(text, steps_of(path))))


def document_to_value(document: GraphDocument) -> dict[str, Any]:
    """Return a document as a JSON value without absent fields."""
    return _CONVERTER.unstructure(document)  # type: ignore[no-any-return]


def show(value: Any) -> str:
    """Return a short description of a JSON value for messages."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _explain(error: BaseException, _: type | None) -> str:
    if isinstance(error, cattrs.errors.ForbiddenExtraKeysError):
        return (
            f"unknown field{'s' * (len(error.extra_fields) > 1)} {', '.join(map(show, sorted(error.extra_fields)))}\0"
        )
    if isinstance(error, KeyError):
        return "this field is required\0"
    return f"{error}\0"


def _demand(kind: type | tuple[type, ...], expected: str, value: Any) -> Any:
    if type(value) not in (kind if isinstance(kind, tuple) else (kind,)):
        raise ValueError(f"expected {expected}, found {show(value)}")
    return value


def _structure_dtype(value: Any, _: Any) -> DType:
    names = [d.value for d in DType]
    if value not in names:
        raise ValueError(f"expected an element type ({', '.join(names)}), found {show(value)}")
    return DType(value)


def _structure_attribute(value: Any, _: Any) -> Attribute:
    if isinstance(value, dict) and list(value) == ["float"] and value["float"] in NON_FINITE:
        return NON_FINITE[value["float"]]
    items = [_structure_attribute(item, None) for item in value] if isinstance(value, list) else value
    return attribute_of(items)


def _unstructure_attribute(value: Attribute) -> Any:
    if isinstance(value, tuple):
        return [_unstructure_attribute(item) for item in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _typed_hook(kind: type, expected: str, inner: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda value, type_: inner(_demand(kind, expected, value), type_)


def _has_origin(origin: Any, kind: Any) -> bool:
    return get_origin(kind) is origin


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True, omit_if_default=True)
    for kind, expected in _SCALARS.items():
        converter.register_structure_hook(kind, _typed_hook(kind, expected, lambda value, _: value))
    optional = (str, type(None))
    converter.register_structure_hook_func(
        lambda t: t == str | None, lambda value, _: _demand(optional, "a string or null", value)
    )
    converter.register_structure_hook(DType, _structure_dtype)
    converter.register_structure_hook_func(lambda t: t == Attribute, _structure_attribute)
    converter.register_unstructure_hook_func(lambda t: t == Attribute, _unstructure_attribute)

    def object_hook(kind: Any) -> Callable[[Any, Any], Any]:
        inner = make_dict_structure_fn(
            kind, converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True
        )
        return _typed_hook(dict, "an object", inner)

    def list_hook(kind: Any) -> Callable[[Any, Any], Any]:
        return _typed_hook(list, "a list", homogenous_tuple_structure_factory(kind, converter))

    def map_hook(kind: Any) -> Callable[[Any, Any], Any]:
        return _typed_hook(dict, "an object", mapping_structure_factory(kind, converter))

    converter.register_structure_hook_factory(has, object_hook)
    converter.register_structure_hook_factory(partial(_has_origin, tuple), list_hook)
    converter.register_structure_hook_factory(partial(_has_origin, dict), map_hook)
    return converter


_CONVERTER = _converter()
