"""Vector accesses of the neighbours along a variable, asynchronous copies among them.

    %0: f32 = load global x[4*t + u]                 ->      %0: f32 = vector_load global x[4*t + u] over u by (4)
    store shared s[4*t + u]: f32 = %0                        vector_store shared s[4*t + u]: f32 = %0 over u by 4

In an asynchronous phase the two are a copy:   async_copy cp_async_16 s[4*t + u]: f32 from x[4*t + u] over u by 4

A window that neighbouring outputs share may begin at any element and have any length, but most of it is in aligned
vectors:

    x[8*t + w - 3] over w < 14     ->     w = 0 .. 2 singly, 3 .. 6 and 7 .. 10 as vectors, 11 .. 13 singly
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from ...ir import (
    MIN_COPY_BYTES,
    PACKED_CONVERSIONS,
    WIDEST_BYTES,
    WORD_EXTREMES,
    Accumulate,
    AsyncCopy,
    Convert,
    DType,
    Guard,
    IndexNode,
    Literal,
    Load,
    Op,
    Store,
    Value,
    Var,
    VectorLoad,
    VectorStore,
    Window,
    copy_row,
    own_variables,
    vector_address,
    vector_guards,
    vector_piece,
    vector_widths,
)
from .context import SelectionContext

#: Bytes of a register.
WORD_BYTES = 4
#: Number whose sum with a smaller one has no fraction, and largest numbers that conversions to bytes move those by.
ROUNDING_SUM, MAX_SMALL = 1.5 * 2**23, 1 << 10
#: Functions that move a rounded number by another one.
_MOVES = ("add", "sub", "max", "min")


def select_vector_load(node: Load, var: Var, context: SelectionContext) -> VectorLoad | None:
    """Return the load of all elements along a variable as equal vectors."""
    width = context.width(node.dtype, var.extent)
    guards = _whole_guards(node, var, width, context)
    if guards is None:
        return None
    pieces = (width,) * (var.extent // width)
    return VectorLoad(node.space, node.buffer, node.address, node.dtype, var, pieces, guards, node.fill)


def select_vector_store(node: Store, var: Var, context: SelectionContext) -> VectorStore | None:
    """Return the store along a variable as equal vectors, the longest ones."""
    guards = vector_guards(node.guards, var)
    if guards is None or var not in own_variables(node):
        return None
    aligned, width = context.alignment(node.space, node.buffer), context.width(node.dtype, var.extent)
    for n in (n for n in vector_widths(node.dtype) if 1 < n <= width and var.extent % n == 0):
        pieces = (range(first, first + n) for first in range(0, var.extent, n))
        if aligned % (n * node.dtype.size) == 0 and all(vector_piece(node.address, (), var, each) for each in pieces):
            value, conversion = _packed_value(node, n, context)
            return VectorStore(
                node.space, node.buffer, node.address, value, node.dtype, var, n, guards, conversion=conversion
            )
    return None


def _packed_value(node: Store, width: int, context: SelectionContext) -> tuple[Value, str]:
    """Return the value of a store of vectors, and the conversion of pairs that it takes."""
    value = node.value
    if width * node.dtype.size % WORD_BYTES:
        return value, ""
    if not isinstance(value, Convert):
        known = next((c for c in context.instructions if PACKED_CONVERSIONS.get(c) == (node.dtype, value.dtype)), "")
        least = _above_zero(value) if known else None
        return (value, "") if least is None else (least, known)
    kinds = node.dtype, value.arg.dtype
    conversion = next((c for c in context.instructions if PACKED_CONVERSIONS.get(c) == kinds), "")
    return (round_by_addition(value, context).arg if conversion else value), conversion


def round_by_addition(node: Convert, context: SelectionContext) -> Convert:
    """Return a conversion to bytes that rounds its operand by additions.

    These are as fast as any addition. They round numbers below 2^22 to integers; larger ones leave the type's range in
    any case. A packed conversion to signed integers rounds its operand itself.
    """
    packs = any(kinds == (node.dtype, node.arg.dtype) for kinds in map(PACKED_CONVERSIONS.get, context.instructions))
    itself = isinstance(node.arg, Op) and node.arg.fn == "round" and node.dtype.element.kind == "signed"
    return evolve(node, arg=_near(node.arg)) if packs and not itself else node


def _near(value: Value) -> Value:
    """Return a value whose rounding is by additions, if it is that of one number, moved by small integers."""
    if not isinstance(value, Op) or value.dtype is not DType.F32:
        return value
    if value.fn == "round":
        magic = Literal(ROUNDING_SUM, DType.F32)
        return Op("sub", (Op("add", (value.args[0], magic), DType.F32), magic), DType.F32)
    first, *others = value.args
    moved = value.fn in _MOVES and all(map(_is_small, others))
    return _merge_sums(evolve(value, args=(_near(first), *others))) if moved else value


def _merge_sums(value: Op) -> Op:
    """Return a rounded number that is moved by a small integer, with one sum less.

    (x + r) - r + z  ->  (x + r) - (r - z)
    """
    first, *others = value.args
    inner = first.args if isinstance(first, Op) and first.fn == "sub" else ()
    rounded = inner[1:] == (Literal(ROUNDING_SUM, DType.F32),)
    moved = [n for n in map(_number, others) if n is not None]
    if value.fn not in ("add", "sub") or not rounded or len(moved) != 1:
        return value
    base = ROUNDING_SUM - moved[0] * (1 if value.fn == "add" else -1)
    return Op("sub", (inner[0], Literal(base, DType.F32)), DType.F32)


def _number(value: Value) -> float | None:
    """Return a literal number, also where types that have it convert it."""
    if isinstance(value, Convert):
        number, limits = _number(value.arg), value.dtype.element
        fits = number is not None and (value.dtype.is_float or limits.lowest <= number <= limits.highest)
        return number if fits else None
    if isinstance(value, IndexNode):
        return None if value.index.terms else float(value.index.const)
    return float(value.value) if isinstance(value, Literal) else None


def _is_small(value: Value) -> bool:
    if isinstance(value, Convert):
        return value.arg.dtype.is_int and value.arg.dtype.size == 1
    return isinstance(value, Literal) and abs(value.value) <= MAX_SMALL and float(value.value).is_integer()


def _above_zero(value: Value) -> Value | None:
    """Return a value whose maximum with 0 is the given one, None where none is known.

    min(max(x, 0), 6)  ->  min(x, 6)
    """
    if not isinstance(value, Op):
        return None
    *others, last = value.args
    least = last.value if isinstance(last, Literal) else -1.0
    if value.fn == "max" and least == 0.0:
        return others[0]
    if value.fn not in ("min", "select") or not least >= 0.0:
        return None
    inner = _above_zero(others[-1])
    return None if inner is None else evolve(value, args=(*others[:-1], inner, last))


def select_extreme(node: Accumulate, var: Var, context: SelectionContext) -> Accumulate | None:
    """Return the extreme of loaded words along a variable."""
    load = node.value.load if isinstance(node.value, Window) else node.value
    known = any(WORD_EXTREMES.get(name) == (node.combine, node.dtype) for name in context.instructions)
    words = isinstance(load, VectorLoad) and load.axis == var and load.stored is None
    whole = isinstance(load, VectorLoad) and all(n * load.dtype.size % WORD_BYTES == 0 for n in load.pieces)
    return evolve(node, axis=var) if known and words and whole and var not in node.over else None


def select_addition(node: Store, var: Var, context: SelectionContext) -> Store | None:
    """Return the update of memory by all elements along a variable."""
    guards = _whole_guards(node, var, var.extent, context)
    known = f"{node.into}_{node.dtype}x{var.extent}" in context.instructions and node.space == "global"
    return evolve(node, guards=guards, axis=var) if known and guards is not None else None


def select_copy(node: Store, load: Load, var: Var | None, cached: bool, context: SelectionContext) -> AsyncCopy | None:
    """Return the asynchronous copy of the elements along a variable.

    Without one it copies one element. A failed guard of the source copies zeros. A copy moves bytes of any type. An
    element that is too narrow for one is copied by the thread synchronously.
    """
    width, guards, valid = 1, node.guards, load.guards
    if var is not None:
        width = _copied_neighbours(node, var)
        outer, inner = (_whole_guards(end, var, width, context) for end in (node, load))
        if outer is None or inner is None:
            return None
        guards, valid = outer, inner
    row = copy_row(width * node.dtype.size, cached)
    needed = tuple(g for g in valid if g not in guards)
    return AsyncCopy(
        row.name, node.buffer, node.address, load.buffer, load.address, node.dtype, var, width, guards, needed
    )


def select_window_load(node: Load, var: Var, context: SelectionContext) -> VectorLoad | None:
    """Return the load of a window along a variable.

    None where most elements are single.
    """
    pieces = tuple(_window_pieces(node, var, context.alignment(node.space, node.buffer)))
    if 2 * sum(n for n in pieces if n > 1) < var.extent:
        return None
    return VectorLoad(node.space, node.buffer, node.address, node.dtype, var, pieces, node.guards, node.fill)


def _copied_neighbours(node: Store, var: Var) -> int:
    """Return the elements of one copy along a variable, 0 where there is none."""
    width = min(var.extent, WIDEST_BYTES // node.dtype.size)
    single = width < 2 or width & (width - 1) or var.extent % width or width * node.dtype.size < MIN_COPY_BYTES
    return 0 if single else width


def _whole_guards(node: Load | Store, var: Var, width: int, context: SelectionContext) -> tuple[Guard, ...] | None:
    """Return the guards of an access along a variable, None where it is not in vectors of `width`."""
    aligned = width and context.alignment(node.space, node.buffer) % (width * node.dtype.size) == 0
    if not aligned or var not in own_variables(node) or vector_address(node.address, var) is None:
        return None
    return vector_guards(node.guards, var)


def _window_pieces(load: Load, var: Var, aligned: int) -> Sequence[int]:
    """Return the elements of each access along a variable.

    Vectors are as long as the buffer's alignment in bytes allows, and in range together.
    """
    widths = [n for n in vector_widths(load.dtype) if aligned % (n * load.dtype.size) == 0]
    found: list[int] = []
    while (start := sum(found)) < var.extent:
        fitting = (n for n in widths if start + n <= var.extent)
        found.append(
            next((n for n in fitting if vector_piece(load.address, load.guards, var, range(start, start + n))), 1)
        )
    return found
