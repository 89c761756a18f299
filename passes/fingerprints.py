"""Fingerprints of nodes and units: digests of their computation.

Names, weights and positions are not part of them. A graph that changes, or a version that rewrites some of it, leaves
most fingerprints unchanged, in the same order: corresponding positions are found by a diff of two sequences.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Hashable, Mapping, Sequence
from difflib import SequenceMatcher

from attrs import frozen

from ..ir import Graph, Statement, attributes_key, print_ir, rename_statement
from ..ops.language import Instances
from .fusion import Programs, Unit

#: Digits of a fingerprint.
FINGERPRINT_DIGITS = 8


def node_fingerprints(graph: Graph, instances: Instances) -> tuple[str, ...]:
    """Return each node's fingerprint: operation, attributes, types, and constant operands."""
    found = []
    for node in graph.nodes:
        operands = ["" if v is None else f"{graph.types[v]}{'!' * (v in graph.constants)}" for v in node.inputs]
        results = [str(graph.types[v]) for v in node.outputs]
        said = {name: v for name, v in instances.of_node(node, graph).attributes.items() if v is not None}
        found.append(_fingerprint(f"{node.op} {node.declaration} {operands} {results} {attributes_key(said)}"))
    return tuple(found)


def unit_fingerprints(programs: Programs) -> tuple[str, ...]:
    """Return each unit's fingerprint: statements over numbered tensors, and types.

    A loop is one unit.
    """
    known: dict[Hashable, str] = {}
    found = []
    for unit in programs.units:
        work = _Work.of(unit, programs)
        if work not in known:
            known[work] = _fingerprint(work.text)
        found.append(known[work])
    return tuple(found)


@frozen
class _Work:
    """Computation of a unit: its `statements`, the types of their tensors, and further facts.

    The `step` of a loop may have any name.
    """

    statements: tuple[Statement, ...]
    types: tuple[str, ...]
    facts: tuple[object, ...]
    step: str = ""

    @staticmethod
    def of(unit: Unit, programs: Programs) -> _Work:
        """Return the computation of a unit, or of a loop's whole iteration."""
        parts, numbers = (unit,) if unit.repeat is None else unit.repeat.units, dict[str, str]()
        for part in parts:
            for tensor in (*part.tensors, *part.reads, *part.writes):
                numbers.setdefault(tensor, f"a{len(numbers)}")
        statements = tuple(rename_statement(s, numbers) for part in parts for s in part.statements)
        types = tuple(str(programs.types[t]) for t in numbers if t in programs.types)
        tables = tuple(programs.tables[t] for t in numbers if t in programs.tables)
        touched = tuple((tuple(map(numbers.get, p.reads)), tuple(map(numbers.get, p.writes)), p.free) for p in parts)
        if unit.repeat is None:
            return _Work(statements, types, (tables, touched))
        slices = [(numbers[t], programs.slices[t]) for t in numbers if t in programs.slices]
        moved = tuple((t, numbers.get(s.whole), tuple(map(str, s.starts)), s.extents) for t, s in slices)
        rows = tuple((numbers[t], count) for t, count in programs.rotating.items() if t in numbers)
        kept = tuple(map(numbers.get, unit.repeat.kept))
        step = unit.repeat.step
        return _Work(statements, types, (tables, touched, step.extent, moved, rows, kept), step.name)

    @property
    def text(self) -> str:
        """Text of the whole computation."""
        text = "\n".join((*map(print_ir, self.statements), *self.types, str(self.facts)))
        return re.sub(rf"\b{re.escape(self.step)}\b", "step", text) if self.step else text


def _fingerprint(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:FINGERPRINT_DIGITS]


def match_fingerprints(before: Sequence[str], now: Sequence[str]) -> Mapping[int, int]:
    """Return matching positions of two sequences of fingerprints, in the same order."""
    if before == now:
        return {place: place for place in range(len(now))}
    blocks = SequenceMatcher(None, before, now, autojunk=False).get_matching_blocks()
    return {block.a + n: block.b + n for block in blocks for n in range(block.size)}
