"""Operator set version of a node, where it differs from the model's."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

#: Key of the version in a node's metadata.
KEY = "cuts.opset"


def standard_version(imports: Iterable[onnx.OperatorSetIdProto], usual: int | None = None) -> int:
    """Return the version of the standard's operator set among imports.

    Without one it is `usual`, else the newest.
    """
    newest = onnx.defs.onnx_opset_version()
    fallback = newest if usual is None else usual
    return max((o.version for o in imports if o.domain in ("", "ai.onnx")), default=fallback)


def is_version(version: int) -> bool:
    """Return whether a version of the standard's operator set is supported."""
    return 1 <= version <= onnx.defs.onnx_opset_version()


def set_opset(node: onnx.NodeProto, version: int) -> None:
    """Set the operator set version of a node, unless it carries one."""
    if any(entry.key == KEY for entry in node.metadata_props):
        return
    node.metadata_props.append(onnx.StringStringEntryProto(key=KEY, value=str(version)))


def opset_of(node: onnx.NodeProto, usual: int) -> int:
    """Return the operator set version of a node, `usual` without one."""
    for entry in node.metadata_props:
        if entry.key == KEY and entry.value.isdecimal() and is_version(int(entry.value)):
            return int(entry.value)
    return usual
