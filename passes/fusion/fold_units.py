"""Constant-folds units that depend on no input.

The float64 reference computes them, and rounds once to the declared type.

    %node.w: f32[5] = exp(...) of indices alone          ->     const %node.w: f32[5] = [...]
    %y: f32[64] = sum of %x * %node.w                           %y: f32[64] = sum of %x * %node.w

`fold-constants` does this for whole nodes; this pass does it for statements within a declaration, from its indices, its
tables and operands that are constant. Results that are large or take many steps are left to the kernels; copies are
left too, as they may be views, and units that widen packed constants (`passes.packing`).

A constant condition that holds everywhere chooses: frameworks give attention a mask of all keys.

    select(%mask[i, j], %z[i, j], -inf), %mask = [true, true, ...]   ->   %z[i, j]

Constant integers that step evenly, such as positions, are values of indices.

Unused units are dropped: a node stays whole if one of its results is read, and its other results may be many units,
whose operands would have to be written to memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from functools import partial
from operator import is_

import numpy as np
from attrs import evolve

from ...ir import Array, Call, Expr, Program, Read, as_dtype, distinct
from ...ops import evaluate
from ..packing import PackedConstants
from ..statements import Programs, Unit, replace_stepping_tables
from .cut_units import copy_source

#: Most elements that a folded unit may leave in memory, and most steps that it may take.
_ELEMENTS, _STEPS = 1 << 22, 1 << 24


def fold_units(programs: Programs) -> Programs:
    """Return the programs with units that depend on no input as constants."""
    graph = programs.graph
    writers = Counter(tensor for unit in programs.units for tensor in unit.writes)
    known = PackedConstants(dict(graph.constants), programs.types)
    kept: list[Unit] = []
    for unit in programs.units:
        # A tensor that a loop overwrites is no constant, though it begins as one.
        kept_back = {*graph.outputs, *programs.slices}
        alone = all(writers[tensor] == 1 and tensor not in kept_back for tensor in unit.writes)
        fixed = alone and unit.repeat is None and known.knows(unit.reads)
        compute = partial(_values, unit, programs, known)
        widens = fixed and known.widen(unit.statements, unit.reads, unit.writes, compute)
        if fixed and not widens and not all(map(copy_source, unit.statements)) and _is_small(unit, programs):
            known.constants.update(compute())
        else:
            kept.append(unit)
    constants = known.constants
    lasting = {t: a for t, a in constants.items() if not writers[t] and t not in programs.slices}
    true = {t for t, a in lasting.items() if a.dtype == np.bool_ and a.all()}
    kept = replace_stepping_tables(kept, lasting)
    kept = [_choose_where(unit, true) if unit.repeat is None and true & {*unit.reads} else unit for unit in kept]
    if all(map(is_, kept, programs.units)) and len(kept) == len(programs.units):
        return programs
    types = {**graph.types, **{tensor: programs.types[tensor] for tensor in constants}}
    return evolve(programs, graph=evolve(graph, constants=constants, types=types), units=tuple(kept))


def _choose_where(unit: Unit, true: Collection[str]) -> Unit:
    """Return a unit whose conditions on tensors of truth are chosen."""
    statements = tuple(evolve(s, body=_choose(s.body, true)) for s in unit.statements)
    before, left = ({t for s in each for t in s.tensors_read} for each in (unit.statements, statements))
    return evolve(unit, statements=statements, reads=tuple(t for t in unit.reads if t in left or t not in before))


def _choose(expr: Expr, true: Collection[str]) -> Expr:
    """Return an expression whose choices by tensors of truth are made."""
    done: dict[int, Expr] = {}
    for node in distinct(expr):
        found = node.with_children(tuple(done[id(child)] for child in node.children)) if node.children else node
        if isinstance(node, Call) and node.fn == "select":
            condition = node.args[0]
            if isinstance(condition, Read) and condition.tensor in true and not condition.guards:
                found = done[id(node.args[1])]
        done[id(node)] = found
    return done[id(expr)]


def _is_small(unit: Unit, programs: Programs) -> bool:
    steps = sum(math.prod(v.extent for v in (*s.axes, *s.reduce)) for s in unit.statements)
    return steps <= _STEPS and sum(programs.types[t].size for t in unit.writes) <= _ELEMENTS


def _values(unit: Unit, programs: Programs, known: PackedConstants) -> dict[str, Array]:
    tensors = {tensor: programs.types[tensor] for tensor in unit.tensors}
    tables = {tensor: programs.tables[tensor] for tensor in unit.tensors if tensor in programs.tables}
    program = Program(tensors, unit.reads, unit.writes, unit.statements, tables)
    found = evaluate(program, {tensor: known.array(tensor) for tensor in unit.reads})
    return {tensor: as_dtype(values, tensors[tensor].dtype.numpy) for tensor, values in found.items()}


def drop_unused(programs: Programs) -> Programs:
    """Return programs without units whose results have no readers.

    Loops stay, and so do tensors with slices.
    """
    needed = {*programs.graph.outputs, *(part.whole for part in programs.slices.values())}
    kept: list[Unit] = []
    for unit in reversed(programs.units):
        if unit.repeat is not None or not needed.isdisjoint(unit.writes):
            needed.update(unit.reads)
            kept.append(unit)
    return programs if len(kept) == len(programs.units) else evolve(programs, units=tuple(reversed(kept)))
