"""The phase in which matrix atoms add up one chunk of a reduction."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve

from ...ir import (
    MATH_MODES,
    MATRIX_ATOMS,
    Accumulate,
    Convert,
    Expr,
    Held,
    Literal,
    Op,
    PassError,
    Phase,
    Reduction,
    ReductionSchedule,
    Root,
    Test,
    Value,
    Var,
    as_index,
)
from .atoms import atom_loop, atom_operands, products
from .index_values import value_of
from .segment_state import SegmentState
from .staging import AxisBinding
from .tabulate import tabulate


def multiply(
    state: SegmentState,
    reduction: Reduction,
    schedule: ReductionSchedule,
    binding: AxisBinding,
    depth: Var,
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
    prefix: str,
) -> Phase:
    """Return the phase in which atoms add up one chunk: straight into the reduction's registers, or, where the math
    mode promotes partial sums, into registers of the chunk's own that are added to those.
    """
    frame = state.frame
    dims, dtype = frame.schedule.dims, state.group.tensors[reduction.name].dtype
    parts = atom_operands(reduction, dims[schedule.rows].axes, dims[schedule.columns].axes)
    if parts is None or frame.warp is None or frame.when:
        raise PassError(f"reduction {reduction.name}: no two factors of a sum are what atom {schedule.atom} multiplies")
    context = state.context(binding, staged)
    a, b = (_present(value_of(part, context), part, depth, binding, covered) for part in parts)
    flats = {f.var: f for f in binding.flats.values()}
    a, b = tabulate(a, flats, state.layout.tables), tabulate(b, flats, state.layout.tables)
    held = MATRIX_ATOMS[schedule.atom].held
    a, b = (v if v.dtype is held else Convert(v, held) for v in (a, b))
    shared = atom_loop(schedule, dims, frame.tiles, depth, frame.warp, prefix)
    at = tuple(as_index(u) for u in frame.tiles)
    mode = MATH_MODES.get(reduction.math)
    name = f"{reduction.name}.part" if mode is not None and mode.every else reduction.name
    roots: list[Root] = list(products(reduction, schedule, name, at, (a, b), depth, shared.axes, frame.warp.lane))
    if name != reduction.name:
        zero = evolve(state.initialise(reduction), name=name)
        roots = [zero, *roots, Accumulate(reduction.name, at, "sum", Held(name, at, dtype), (), dtype)]
    shares = (*state.shares.values(), *shared.shares)
    unrolled = tuple(v for v in shared.unrolled if v.extent > 1) + frame.unrolled
    return Phase("compute", f"{frame.prefix}r{prefix[-1]}", tuple(roots), unrolled, shares, frame.when)


def _present(
    value: Value, part: Expr, depth: Var, binding: AxisBinding, covered: Mapping[Expr, frozenset[Var]]
) -> Value:
    """Return an operand that is 0 behind the ragged end of the depth: 0 times what lies there may be no number."""
    if depth not in binding.valid or (part in covered and depth in covered[part]):
        return value
    zero = Literal(0.0 if value.dtype.is_float else 0, value.dtype)
    return Op("select", (Test((binding.valid[depth],)), value, zero), value.dtype)
