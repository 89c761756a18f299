"""Frozen classes as JSON values, and back, by field types.

A record has exactly the fields of its class, but those with defaults. Opening a plan takes a few of its milliseconds
here: the reader of a type is made once, and no code is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

from attrs import NOTHING, fields, has, resolve_types

from ...ir import Storage

Reader: TypeAlias = Callable[[Any], Any]
#: Fields that files call otherwise, by class.
_NAMES: Mapping[type, Mapping[str, str]] = {Storage: {"iterations": "turns"}}


def write_record(value: Any) -> Any:
    """Return the JSON value of a record."""
    if has(type(value)):
        names = _NAMES.get(type(value), {})
        return {names.get(f.name, f.name): write_record(getattr(value, f.name)) for f in fields(type(value)) if f.init}
    if isinstance(value, Mapping):
        return {key: write_record(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [write_record(item) for item in value]
    return value.value if isinstance(value, Enum) else value


def read_record(value: object, kind: Any) -> Any:
    """Return the value of a type that a JSON value describes.

    Raises `ValueError` with the place in the value where it does not.
    """
    return _reader(kind)(value)


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads values of a type."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return _keep
    if has(kind):
        return _class_reader(kind)
    if origin in (Union, UnionType):
        (inner,) = (part for part in parts if part is not NoneType)
        read = _reader(inner)
        return lambda value: None if value is None else read(value)
    if origin is Literal:
        return lambda value: _expect(value in parts, value, f"one of {', '.join(map(repr, parts))}")
    if origin is tuple:
        return _tuple_reader(parts)
    if origin in (dict, Mapping):
        return _mapping_reader(_reader(parts[1]))
    return kind if issubclass(kind, Enum) else _SCALARS[kind]


def _keep(value: Any) -> Any:
    return value


def _expect(holds: bool, value: Any, expected: str) -> Any:
    if not holds:
        raise ValueError(f"expected {expected}, found {value!r:.40}")
    return value


def _class_reader(kind: type) -> Reader:
    names = _NAMES.get(kind, {})
    known = [field for field in fields(resolve_types(kind)) if field.init]
    readers = {names.get(field.name, field.name): (field.alias, _lazy_reader(field.type)) for field in known}
    required = {names.get(field.name, field.name) for field in known if field.default is NOTHING}

    def read(value: Any) -> Any:
        _expect(isinstance(value, Mapping), value, f"the fields of {kind.__name__}")
        if value.keys() - readers.keys() or required - value.keys():
            unknown, missing = sorted(value.keys() - readers.keys()), sorted(required - value.keys())
            raise ValueError(f"{kind.__name__} has unknown fields {unknown} and lacks {missing}")
        found = {}
        for name, item in value.items():
            alias, reader = readers[name]
            found[alias] = _read_at(reader, item, f".{name}")
        return kind(**found)

    return read


def _lazy_reader(kind: Any) -> Reader:
    return lambda value: _reader(kind)(value)


def _read_at(reader: Reader, item: Any, place: str) -> Any:
    try:
        return reader(item)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{place}{'' if str(error)[:1] in '.[' else ': '}{error}") from None


def _tuple_reader(parts: tuple[Any, ...]) -> Reader:
    if len(parts) == 2 and parts[1] is Ellipsis:
        inner = _reader(parts[0])

        def read_any(value: Any) -> tuple[Any, ...]:
            _expect(isinstance(value, (list, tuple)), value, "a list")
            return tuple(_read_at(inner, item, f"[{number}]") for number, item in enumerate(value))

        return read_any
    readers = tuple(map(_reader, parts))

    def read_each(value: Any) -> tuple[Any, ...]:
        _expect(isinstance(value, (list, tuple)) and len(value) == len(readers), value, f"{len(readers)} values")
        return tuple(reader(item) for reader, item in zip(readers, value, strict=True))

    return read_each


def _mapping_reader(inner: Reader) -> Reader:
    def read(value: Any) -> dict[str, Any]:
        _expect(isinstance(value, Mapping), value, "an object")
        return {str(key): _read_at(inner, item, f".{key}") for key, item in value.items()}

    return read


def _read_integer(value: Any) -> int:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return int(_expect(is_whole and not isinstance(value, bool), value, "a whole number"))


def _read_number(value: Any) -> float:
    return float(_expect(isinstance(value, (int, float)) and not isinstance(value, bool), value, "a number"))


_SCALARS: Mapping[Any, Reader] = {
    int: _read_integer,
    float: _read_number,
    bool: lambda value: _expect(isinstance(value, bool), value, "true or false"),
    str: lambda value: _expect(isinstance(value, str), value, "a text"),
}
