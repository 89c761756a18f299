"""Common subexpression elimination (CSE) of equal nodes and equal constants.

    %a: f32[4] = relu(%x)                 ->     %a: f32[4] = relu(%x)
    %b: f32[4] = relu(%x)                        %y: f32[4] = add(%a, %a)
    %y: f32[4] = add(%a, %b)

Attributes are compared with their defaults filled in, so `softmax(%x)` and `softmax(%x) {axis = -1}` are the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import ClassVar

import numpy as np
from attrs import evolve, frozen

from ....ir import Array, Graph, attributes_key
from ....ops.language import Instances
from ..rewrite import prune, rename_inputs

#: Elements at either end of an array that are compared first.
SKETCH_ELEMENTS = 8


@frozen
class EliminateCommonSubexpressions:
    """Let readers of later duplicates read the first; outputs keep their definitions.

    A duplicate that defines an output of the graph stays when the first does too.
    """

    name: ClassVar[str] = "merge-common"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph with equal nodes and constants merged."""
        renamed = _equal_constants(graph)
        first: dict[object, tuple[str, ...]] = {}
        nodes = []
        for node in graph.nodes:
            node = rename_inputs(node, renamed)
            attributes = self.instances.of_node(node, graph).attributes
            key = (node.op, node.inputs, attributes_key(attributes))
            if key in first and not any(v in graph.outputs for v in node.outputs):
                renamed.update(zip(node.outputs, first[key], strict=True))
            else:
                first.setdefault(key, node.outputs)
                nodes.append(node)
        return prune(evolve(graph, nodes=tuple(nodes))) if renamed else graph


def _equal_constants(graph: Graph) -> dict[str, str]:
    """Map constants to the first one of equal type and bits; graph outputs keep their own."""
    first: dict[object, str] = {}
    renamed: dict[str, str] = {}
    sketches = {name: (str(graph.types[name]), _sketch(array)) for name, array in graph.constants.items()}
    counts = Counter(sketches.values())
    for name, array in graph.constants.items():
        if counts[sketches[name]] == 1:  # most are unique, and hashing all bits of large weights takes long
            continue
        key = (sketches[name][0], _digest(array))
        if key in first and name not in graph.outputs:
            renamed[name] = first[key]
        else:
            first.setdefault(key, name)
    return renamed


def _sketch(array: Array) -> bytes:
    """Return a few of the bits."""
    return bytes(array.flat[:SKETCH_ELEMENTS].tobytes() + array.flat[-SKETCH_ELEMENTS:].tobytes())


def _digest(array: Array) -> bytes:
    """Return a hash of the bits; an array whose strides are all zero is hashed by its one element."""
    if array.size and not any(array.strides):
        return hashlib.sha256(b"splat" + array.reshape(-1)[:1].tobytes()).digest()
    return hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data if array.ndim else array.tobytes()).digest()
