"""Version of the standard's operator set that a node is read by, where it differs from the model's."""

from __future__ import annotations

from collections.abc import Iterable

import onnx

#: Key of a node's metadata that has the version.
KEY = "cuts.opset"


def standard_version(imports: Iterable[onnx.OperatorSetIdProto], usual: int | None = None) -> int:
    """Return the version of the standard's operator set among imports; `usual`, or the newest, where there is none."""
    newest = onnx.defs.onnx_opset_version()
    fallback = newest if usual is None else usual
    return max((o.version for o in imports if o.domain in ("", "ai.onnx")), default=fallback)


def is_version(version: int) -> bool:
    """Whether the standard's operator set has a version that we read."""
    return 1 <= version <= onnx.defs.onnx_opset_version()


def set_opset(node: onnx.NodeProto, version: int) -> None:
    """Let a node be read by a version of the standard's operator set, unless it carries one."""
    if any(entry.key == KEY for entry in node.metadata_props):
        return
    node.metadata_props.append(onnx.StringStringEntryProto(key=KEY, value=str(version)))


def opset_of(node: onnx.NodeProto, usual: int) -> int:
    """Return the version by which a node is read, `usual` where it carries none."""
    for entry in node.metadata_props:
        if entry.key == KEY and entry.value.isdecimal() and is_version(int(entry.value)):
            return int(entry.value)
    return usual
