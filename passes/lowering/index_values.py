"""Data-flow nodes of index expressions: loads at flat addresses, with guards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from attrs import frozen

from ...ir import (
    Call,
    Cast,
    Const,
    Convert,
    DType,
    Expr,
    FusedGroup,
    Guard,
    Index,
    IndexNode,
    IndexValue,
    Indirect,
    InRange,
    Literal,
    Load,
    Op,
    Primary,
    Read,
    RegisterRead,
    Storage,
    Test,
    Value,
    dtype_of,
    indirects,
    linearise,
    map_guards,
    map_primaries,
    order_lookups_last,
    substitute_expr,
)
from .layout import AxisBinding, Box

#: Greatest integer of a byte with a sign.
I8_MAX = 127


@frozen
class Context:
    """Environment of an expression's evaluation.

    `binding` gives the places of axes. `staged` maps an operand to the load from its tile, `held` a reduction's name to
    its register, `boxes`, `pitches` and `names` describe tensors that live in shared memory. Tensors in `whole` have
    defined values in all of the box, also beyond the end of the tensor; those in `filled` have the fill value of their
    reads there. `extra` are guards of every load.
    """

    group: FusedGroup
    storages: Mapping[str, Storage]
    binding: AxisBinding
    staged: Mapping[Expr, Value]
    held: Mapping[str, RegisterRead]
    boxes: Mapping[str, Box]
    pitches: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]
    extra: tuple[Guard, ...] = ()
    whole: frozenset[str] = frozenset()
    filled: frozenset[str] = frozenset()


def value_of(expr: Expr, context: Context) -> Value:
    """Return the data-flow node of an expression.

    Axes are replaced by their places, staged operands by their loads.
    """
    if expr in context.staged:
        return context.staged[expr]
    if isinstance(expr, Call):
        args = tuple(value_of(a, context) for a in expr.args)
        return Op(expr.fn, args, dtype_of(expr, context.group.tensors))
    if isinstance(expr, Cast):
        if (difference := _unpacked_difference(expr)) is not None:
            return value_of(difference, context)
        return Convert(value_of(expr.arg, context), expr.dtype)
    if isinstance(expr, Const):
        return Literal(expr.value, expr.dtype)
    if isinstance(expr, Read) and expr.tensor in context.held:
        return context.held[expr.tensor]
    return _leaf(expr, context)


def _unpacked_difference(cast: Cast) -> Expr | None:
    """Return the conversion of unpacked bits less a number, as a difference of floats that is exact.

    f32(i8(word & 15) - 7)  ->  f32(word & 15) - 7.0
    """
    if not isinstance(cast.arg, Call) or cast.arg.fn != "sub" or not cast.dtype.includes(DType.U8):
        return None
    whole, low = cast.arg.args
    bits = whole.arg if isinstance(whole, Cast) and whole.dtype is DType.I8 else whole
    if not isinstance(bits, Call) or bits.fn != "bitand" or not isinstance(low, Const):
        return None
    mask = bits.args[1]
    if not isinstance(mask, Const) or mask.dtype is not DType.U8 or max(mask.value, mask.value - low.value) > I8_MAX:
        return None
    return Call("sub", (Cast(cast.dtype, bits), Const(float(low.value), cast.dtype)))


def _leaf(expr: Expr, context: Context) -> Value:
    moved = substitute_expr(expr, context.binding.places)
    if isinstance(moved, Const):
        return Literal(moved.value, moved.dtype)
    if isinstance(moved, IndexValue):
        place = IndexNode(resolve(moved.index, context), moved.dtype)
        there = _existing([moved.index], context) if indirects(moved.index) else ()
        return Op("select", (Test(there), place, Literal(0, moved.dtype)), moved.dtype) if there else place
    if isinstance(moved, InRange):
        looked_up = [g.index for g in moved.guards if indirects(g.index)]
        guards = map_guards(moved.guards, lambda index: resolve(index, context))
        there = _existing(looked_up, context) if looked_up else ()
        return Test(order_lookups_last((*there, *guards)))
    assert isinstance(moved, Read)
    return _load(moved, context)


def _existing(indices: Iterable[Index], context: Context) -> tuple[Guard, ...]:
    """Return the guards under which looked-up elements are in a tensor: beyond the end of a tile there are none."""
    used = {v for index in indices for v in context.binding.dependent_locals(index)}
    return (*(g for v, g in context.binding.valid.items() if v in used), *context.extra)


def _load(read: Read, context: Context) -> Value:
    dtype = context.group.tensors[read.tensor].dtype
    asked = () if read.tensor in context.filled else read.guards
    guards = map_guards(asked, lambda index: resolve(index, context))
    looked_up = (g.index for g in asked if indirects(g.index))
    safe = read.tensor in context.whole or read.tensor in context.filled
    if not safe:
        guards = (*guards, *_existing((*read.indices, *looked_up), context))
    kept = order_lookups_last(g for g in guards if not g.always)
    indices = [resolve(i, context) for i in read.indices]
    if read.tensor in context.boxes:
        box = context.boxes[read.tensor]
        places = [i - b for i, b in zip(indices, box.base, strict=True)]
        if safe:
            inside = (Guard(place, 0, extent) for place, extent in zip(places, box.extents, strict=True))
            kept = tuple(dict.fromkeys((*kept, *(g for g in inside if not g.always))))
        return Load(
            "shared",
            context.names[read.tensor],
            linearise(places, context.pitches[read.tensor]),
            dtype,
            kept,
            read.fill,
        )
    if read.tensor in context.group.constants:
        strides = context.group.tensors[read.tensor].strides
        return Load("constant", read.tensor, linearise(indices, strides), dtype, kept, read.fill)
    return Load("global", read.tensor, linearise(indices, strides_of(read.tensor, context)), dtype, kept, read.fill)


def strides_of(tensor: str, context: Context) -> tuple[int, ...]:
    """Return a global tensor's strides in elements.

    They are its storage's, or dense ones.
    """
    storage = context.storages.get(tensor)
    return storage.strides if storage is not None else context.group.tensors[tensor].strides


def resolve(index: Index, context: Context) -> Index:
    """Flatten the coordinates of indirect reads.

    An `Indirect` primary then has one index, a flat address, or those of a register.
    """

    def flatten(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect):
            return None
        if primary.held:
            return primary.with_parts(context.held[primary.tensor].at)
        return primary.with_parts((linearise(parts, strides_of(primary.tensor, context)),))

    return map_primaries(index, flatten) if indirects(index) else index
