"""Verifies that units of a rewrite have normal forms.

v = a b; w = v c; y = v + w     as one unit: y needs elements of v that other threads compute     -> reported
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import frozen

from ...statements import Programs, Unit
from ..normal_forms import NormalForms
from ..normalise import Illegal, normalise


@frozen
class UngroupableUnit:
    """A unit without a normal form, and the reason as a sentence."""

    unit: Unit
    reason: str

    @property
    def text(self) -> str:
        """The unit, its node and the reason, for the log."""
        return f"unit '{self.unit.name}' of node '{self.unit.node}' ({self.unit.op}) has no normal form: {self.reason}"


def find_ungroupable(before: Programs, after: Programs) -> UngroupableUnit | None:
    """Return the first new unit without a normal form, if any.

    Unchanged units are skipped, and so are units without readers. Equal units are normalised once.
    """
    forms, normal = NormalForms(), set[tuple[int, tuple[int, ...]]]()
    known = {unit.name: unit for unit in before.every_unit}
    needed: dict[str, set[str]] | None = None
    for unit in after.every_unit:
        if unit.repeat is not None or _is_unchanged(unit, known.get(unit.name)):
            continue
        needed = _readers(after) if needed is None else needed
        live = tuple(t for t in unit.writes if needed.get(t, set()) - {unit.name})
        key = forms.pattern(unit, after), tuple(map(unit.tensors.index, live))
        if not live or key in normal:
            continue
        found = normalise(unit.statements, after.types, live, after.tables)
        if isinstance(found, Illegal):
            return UngroupableUnit(unit, found.reason)
        normal.add(key)
    return None


def _is_unchanged(unit: Unit, before: Unit | None) -> bool:
    """Return whether a rewrite kept the statements of a unit and added no writes."""
    return before is not None and before.statements == unit.statements and {*unit.writes} <= {*before.writes}


def _readers(programs: Programs) -> dict[str, set[str]]:
    """Return the names of the units that read each tensor; results of the graph and of loops are read from outside."""
    found: dict[str, set[str]] = {}
    for reader, tensors in _reads(programs):
        for tensor in tensors:
            found.setdefault(tensor, set()).add(reader)
    return found


def _reads(programs: Programs) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield readers and their tensors: the graph and parts of tensors read under no unit's name."""
    yield "", programs.graph.outputs
    for name, part in programs.slices.items():
        yield "", (name, part.whole)
    for unit in programs.every_unit:
        yield unit.name, unit.reads
        if unit.repeat is not None:
            yield unit.name, unit.repeat.kept
