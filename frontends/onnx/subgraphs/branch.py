"""Conversion of ONNX's `If`.

A constant condition selects its branch. Where the condition is computed, both branches are imported, if their results
have the same types, and each result is selected element by element. That computes more than needed, and keeps the graph
whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from ....ir import quote
from ..importer import Importer
from ..protos import Opaque, tensor_array
from .steps import import_step


def take_branch(importer: Importer, node: onnx.NodeProto, attributes: Mapping[str, Any], where: str) -> None:
    """Import an `If` in the node's place.

    A constant condition imports one branch, a computed one both.
    """
    name = importer.aliases.get(node.input[0], node.input[0])
    condition = importer.constants.get(name)
    if condition is None:
        _both_branches(importer, node, name, attributes, where)
        return
    branch = attributes["then_branch" if bool(condition) else "else_branch"]
    for tensor in branch.initializer:
        importer.define_constants(
            {tensor.name: tensor_array(tensor, importer.folder, f"{where}: initialiser {quote(tensor.name)}")}
        )
    importer.run(branch.node)
    for outer, inner in zip(node.output, branch.output, strict=True):
        if inner.name in importer.unknown:
            importer.unknown.add(outer)
        else:
            importer.alias(outer, importer.aliases.get(inner.name, inner.name))


def _both_branches(
    importer: Importer, node: onnx.NodeProto, condition: str, attributes: Mapping[str, Any], where: str
) -> None:
    origin = node.name or node.output[0]
    found = []
    for key in ("then_branch", "else_branch"):
        body, label = attributes[key], f"{origin}.{key}"
        found.append(importer.attempt(lambda body=body, label=label: import_step(importer, body, [], label, where)))  # type: ignore[misc]
    yes, no = found
    types = [
        None if values is None else [importer.types.get(v) for v in values] for values in (yes, no)
    ]  # a sequence has none
    if yes is None or no is None or types[0] != types[1] or None in (types[0] or ()):
        importer.want(condition)
        raise Opaque(
            f"{where}: the condition must be a constant, found a computed value; its branches cannot both be computed"
        )
    (test,) = importer.add_node("reshape", [condition], {"shape": ()}, origin, [None])
    for name, a, b in zip(node.output, yes, no, strict=True):
        if name:
            importer.add_node("where", [test, a, b], {}, origin, [name])
