"""Piecewise tensors: elementwise readers are written in the pieces of their operand.

A sum over strides may become a statement for each residue (`residues`), and a gradient of a strided read is one for
each of its residues. No kernel can compute such a tensor as a whole, so that nothing would be fused with it. Where only
elementwise statements read it, each at the element that it writes, every piece becomes a tensor of its own, and the
readers are written in pieces, too:

    a[2*t] = sum ...; a[2*t + 1] = sum ...; y[i] = max(a[i], 0)
      ->   a.0[t] = sum ...; y[2*t] = max(a.0[t], 0); a.1[t] = sum ...; y[2*t + 1] = max(a.1[t], 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve

from ...ir import Expr, Read, Statement, TensorType, Var, as_index, rebuild, substitute, substitute_expr
from ...ops.language import unused_name
from ..statements import Programs, Unit, issue_slots
from .cut_units import copy_source

#: Most issue slots of a statement that is computed in pieces.
MAX_ISSUE_SLOTS = 64


def split_piecewise_readers(programs: Programs) -> Programs:
    """Return programs in which readers of piecewise tensors are piecewise, where possible."""
    waiting = list(_piecewise_sums(programs))
    known = programs.producers(), programs.consumers()
    while waiting:
        tensor = waiting.pop()
        if _can_be_followed(tensor, programs, *known):
            waiting += [u.writes[0] for u in known[1][tensor]]
            programs = _split_readers(tensor, programs)
            known = programs.producers(), programs.consumers()
    return programs


def _piecewise_sums(programs: Programs) -> Iterator[str]:
    """Yield the tensors that several statements write, one of them a sum, each a unit of its own."""
    for tensor, writers in programs.producers().items():
        single = all(len(u.statements) == 1 and u.statements[0].into is None for u in writers)
        if len(writers) > 1 and single and any(u.statements[0].combine for u in writers):
            yield tensor


def _can_be_followed(
    tensor: str,
    programs: Programs,
    producers: Mapping[str, Sequence[Unit]],
    consumers: Mapping[str, Sequence[Unit]],
) -> bool:
    """Return whether only elementwise statements read a tensor, each at the element that it writes, and no other
    piecewise tensor: pieces of two may differ.
    """
    readers = consumers.get(tensor, ())
    kept = {*programs.graph.outputs, *programs.slices}
    return (
        tensor not in kept
        and bool(readers)
        and all(u.repeat is None for u in readers)
        and all(len(u.statements) == 1 and _follows(u.statements[0], tensor, programs) for u in readers)
        and all(len(producers[u.writes[0]]) == 1 for u in readers)
        and all(len(producers.get(t, ())) < 2 for u in readers for t in u.reads if t != tensor)
    )


def _follows(statement: Statement, tensor: str, programs: Programs) -> bool:
    """Return whether a statement can be written in the pieces of a tensor that it reads."""
    if not statement.is_pointwise or statement.step is not None or copy_source(statement) is not None:
        return False
    shape = programs.types[tensor].shape
    axes = [a for a, extent in zip(_axes(statement, tensor), shape, strict=True) if extent > 1]
    own = [a for a in statement.axes if a.extent > 1]
    return None not in axes and set(axes) == set(own) and issue_slots(statement.body) <= MAX_ISSUE_SLOTS


def _axes(statement: Statement, tensor: str) -> Sequence[Var | None]:
    """Return the axis of a statement that each dim of a tensor is read along, none for other indices or where reads
    differ.
    """
    reads = [r for r in statement.reads if r.tensor == tensor]
    first = reads[0]
    found = [next((a for a in statement.axes if index == as_index(a)), None) for index in first.indices]
    matches = all(r.indices == first.indices and not r.guards for r in reads)
    return found if matches and len(set(found)) >= len([a for a in found if a]) else [None] * len(found)


def _split_readers(tensor: str, programs: Programs) -> Programs:
    """Return the programs with a tensor for each piece, and the readers of the whole in these pieces."""
    types = dict(programs.types)
    parts: dict[str, tuple[Statement, str]] = {}
    for number, unit in enumerate(programs.producers()[tensor]):
        (statement,) = unit.statements
        name = unused_name(f"{tensor}.{number}", types)
        types[name] = TensorType(types[tensor].dtype, tuple(a.extent for a in statement.axes))
        parts[unit.name] = statement, name
    units: list[Unit] = []
    taken = {unit.name for unit in programs.units}
    for unit in programs.units:
        if unit.name in parts:
            statement, name = parts[unit.name]
            alone = evolve(statement, target=name, write=tuple(map(as_index, statement.axes)))
            units.append(evolve(unit, statements=(alone,), writes=(name,)))
        elif tensor in unit.reads:
            for number, part in enumerate(parts.values()):
                units.append(_reader(unit, tensor, unused_name(f"{unit.name}.{number}", taken), *part))
                taken.add(units[-1].name)
        else:
            units.append(unit)
    return evolve(programs, units=tuple(units), types=types)


def _reader(unit: Unit, tensor: str, called: str, piece: Statement, name: str) -> Unit:
    """Return the part of an elementwise unit that reads one piece of a tensor, under a new name."""
    (statement,) = unit.statements
    fresh = {axis: Var(f"e{n}", axis.extent) for n, axis in enumerate(piece.axes)}
    places = [substitute(index, fresh) for index in piece.write]
    moved = {axis: place for axis, place in zip(_axes(statement, tensor), places, strict=True) if axis is not None}
    own = tuple(map(as_index, fresh.values()))

    def leaf(node: Expr) -> Expr:
        return Read(name, own) if isinstance(node, Read) and node.tensor == tensor else node

    part = evolve(
        statement,
        axes=tuple(fresh.values()),
        write=tuple(substitute(index, moved) for index in statement.write),
        body=substitute_expr(rebuild(statement.body, leaf), moved),
    )
    reads = tuple(name if t == tensor else t for t in unit.reads)
    return evolve(unit, name=called, statements=(part,), reads=reads)
