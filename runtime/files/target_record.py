"""Targets in plans of other versions of the package.

A plan has all numbers of its target, and a run needs few of them. So a number that this version does not have is
dropped, and one that the plan lacks is that of the present description of the machine:

    {"arch": "sm_90", "NUM_SM": 132, "formerly": 3}   ->   H200's description with NUM_SM = 132
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from attrs import fields, has, resolve_types

from ...ir import Target, UsageError
from .json_records import write_record


@cache
def _description(name: str, dialect: str, arch: str) -> Target:
    """Return the present description of a machine, or of its dialect where it has none."""
    from ...backends import described_device, described_target

    try:
        return described_device(name, arch) if dialect == "cuda" else described_target(dialect)
    except UsageError:
        return described_target("cuda" if dialect == "cuda" else "opencl")


def complete_target(data: Any) -> Any:
    """Return the record of a target with the fields of this version.

    Raises `KeyError` where name, dialect or architecture are missing.
    """
    if not isinstance(data, Mapping):
        return data
    if _is_complete(data, Target):
        return data
    present = _description(str(data["name"]), str(data["dialect"]), str(data["arch"]))
    return _merge(data, present)


def _is_complete(data: Any, kind: Any) -> bool:
    """Return whether a record has the fields of a class; those of classes inside too."""
    known = {field.name: field.type for field in fields(resolve_types(kind))}
    inner = ((data.get(name), type_) for name, type_ in known.items() if has(type_))
    return data.keys() == known.keys() and all(
        isinstance(value, Mapping) and _is_complete(value, type_) for value, type_ in inner
    )


def _merge(data: Any, present: Any) -> Any:
    """Merge a record into an object of the same class; of a class inside too."""
    if not isinstance(data, Mapping):
        return data
    found = {}
    for field in fields(type(present)):
        value = getattr(present, field.name)
        if field.name not in data:
            found[field.name] = write_record(value)
        elif has(type(value)):
            found[field.name] = _merge(data[field.name], value)
        else:
            found[field.name] = data[field.name]
    return found
