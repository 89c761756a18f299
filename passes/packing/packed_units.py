"""Rewrites units that widen packed constants.

Numbers of fewer bits share bytes, as in `packed_bits`; the unit that unpacks them is one more that widens. A widened
value with several readers would be written to memory for all of them, so that each reader gets its own copy:

    %w = widened(%q);  %y = matmul(%x, %w);  %z = gather(%w, %i)
      ->   %w = widened(%q);  %y = matmul(%x, %w);  %w_ = widened(%q);  %z = gather(%w_, %i)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import define, evolve, field

from ...ir import (
    Array,
    DType,
    TensorType,
    rename_statement,
)
from ...ops.language import unused_name
from ..statements import Programs, Unit
from .packed_bits import needed_bits, pack_array, unpacking_statement
from .packed_constants import PackedConstants


def pack_bits(programs: Programs) -> Programs:
    """Return programs whose widened constants take as few bits as necessary."""
    names, sources = widening_units(programs)
    return _Packer(programs, names, sources).run() if names else programs


def widening_units(programs: Programs) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of widening units, and of the constants they widen."""
    known = PackedConstants(dict(programs.graph.constants), programs.types)
    names, kept_back = set[str](), {*programs.graph.outputs, *programs.slices}
    for unit in programs.units:
        single = unit.repeat is None and len(unit.writes) == 1 and unit.writes[0] not in kept_back
        if single and known.knows(unit.reads) and known.widen(unit.statements, unit.reads, unit.writes, dict):
            names.add(unit.name)
    return frozenset(names), frozenset(s for w in known.widened.values() for s in w.sources)


@define
class _Packer:
    """Changes of programs: `units` in order, and the constants, types and names that are new."""

    programs: Programs
    widening: frozenset[str]
    sources: frozenset[str]
    units: list[Unit] = field(init=False)
    constants: dict[str, Array] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    names: set[str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.units = list(self.programs.units)
        self.constants, self.types = dict(self.programs.graph.constants), dict(self.programs.types)
        self.names = {unit.name for unit in self.programs.every_unit}

    def run(self) -> Programs:
        for tensor in sorted(self.sources):
            self._pack(tensor)
        for unit in [u for u in reversed(self.units) if u.name in self.widening]:
            self._copy_for_readers(unit)
        if self.units == list(self.programs.units):
            return self.programs
        read = {t for unit in self.units for t in unit.reads} | {*self.programs.graph.outputs}
        constants = {t: a for t, a in self.constants.items() if t in read or t not in self.sources}
        types = {**self.programs.graph.types, **{t: self.types[t] for t in constants}}
        graph = evolve(self.programs.graph, constants=constants, types=types)
        return evolve(self.programs, graph=graph, units=tuple(self.units), types=self.types)

    def _pack(self, tensor: str) -> None:
        """Store a constant in fewer bits, and unpack it for each of its readers."""
        type_ = self.types[tensor]
        readers = [u for u in self.units if tensor in u.reads]
        kept = {*self.programs.graph.outputs, *self.programs.slices, *self.programs.orders}
        bits = 0 if tensor in kept or not type_.shape else needed_bits(self.constants[tensor])
        if not bits or any(u.name not in self.widening for u in readers):
            return
        values = self.constants[tensor]
        low = min(int(values.min()), 0)
        packed = self._fresh(f"{tensor}.{bits}")
        self.constants[packed] = pack_array(values, bits, low)
        self.types[packed] = TensorType(DType.U8, self.constants[packed].shape)
        for reader in readers:
            target = self._fresh(tensor)
            self.types[target] = type_
            statement = unpacking_statement(packed, target, type_, bits, low)
            name = self._fresh_unit(f"{reader.name}.bits")
            unit = Unit(name, reader.node, reader.op, (statement,), (packed,), (target,))
            place = self.units.index(reader)
            self.units[place : place + 1] = [unit, _rename_tensors(reader, {tensor: target})]
            self.widening |= {name}

    def _copy_for_readers(self, unit: Unit) -> None:
        """Give each reader of a widened value but the first a unit of its own."""
        (value,) = unit.writes
        readers = [u for u in self.units if value in u.reads]
        if any(u.repeat is not None for u in readers):
            return
        for reader in readers[1:]:
            target = self._fresh(value)
            self.types[target] = self.types[value]
            copy = evolve(_rename_tensors(unit, {value: target}), name=self._fresh_unit(unit.name))
            place = self.units.index(reader)
            self.units[place : place + 1] = [copy, _rename_tensors(reader, {value: target})]

    def _fresh(self, tensor: str) -> str:
        return unused_name(tensor, self.types)

    def _fresh_unit(self, name: str) -> str:
        found = unused_name(name, self.names)
        self.names.add(found)
        return found


def _rename_tensors(unit: Unit, names: Mapping[str, str]) -> Unit:
    """Return a unit over tensors of other names."""

    def rename(tensors: Iterable[str]) -> tuple[str, ...]:
        return tuple(names.get(t, t) for t in tensors)

    statements = tuple(rename_statement(s, names) for s in unit.statements)
    return evolve(unit, statements=statements, reads=rename(unit.reads), writes=rename(unit.writes))
