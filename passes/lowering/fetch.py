"""Fetch phases: operand tiles from global to shared memory (section 6.1).

Threads walk the tile in the order of global addresses, so that neighbours load neighbours; where addresses allow, each
moves a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import evolve

from ...ir import (
    WIDEST_BYTES,
    Convert,
    DType,
    Guard,
    Index,
    Literal,
    Load,
    Op,
    Phase,
    Read,
    Share,
    SharedBuffer,
    Store,
    Test,
    Value,
    Var,
    as_index,
    delinearise,
    evaluate,
    indirects,
    post_order,
    substitute,
    variables,
    vector_address,
    vector_guards,
    vector_widths,
)
from ..geometry import MIN_COPY_BYTES, line_fetch, main_read, whole_row_fetch
from .index_values import Context, value_of
from .layout import AxisBinding, Tile
from .substitute_phase import words_along

#: The variable that numbers a thread's elements of a fetch.
TRIP = "f"


def fetch_phase(
    tile: Tile,
    buffer: SharedBuffer,
    slot: Index,
    context: Context,
    thread: Var,
    name: str,
    asynchronous: bool,
    cached: bool,
    widest: int,
    aligned: Mapping[str, int],
) -> Phase:
    """Return the phase that fills one stage of a tile.

    `slot` is the stage's number, `widest` the bytes of the widest access, `aligned` those that tensors are aligned to.
    Asynchronous copies that are `cached` leave the data in L1.
    """
    context = evolve(context, binding=AxisBinding({}, (), (), {}), extra=tile.valid)
    order = traversal(tile, context)
    value = tile_value(tile, context, buffer.dtype)
    store = Store("shared", buffer.name, slot * tile.size + tile.address(tile.coordinates), value, buffer.dtype)
    copies = asynchronous and isinstance(value, Load) and value.fill == 0
    for width in _widths(value, buffer.dtype, copies, widest, aligned):
        if tile.coordinates[order[-1]].extent % width:
            continue
        shares, unrolled = _divide_elements(tile, order, thread, width, buffer.dtype.size)
        if width == 1 or _vectorises(store, shares, unrolled[-1], copies, aligned):
            break
    # Where no value is loaded from the tile, elements too narrow for a copy are moved as bits, not as numbers.
    copies = copies and (tile.matrix is not None or width * buffer.dtype.size >= MIN_COPY_BYTES)
    unrolled = tuple(v for v in unrolled if v.extent > 1)
    moved = store if copies or width > 1 else _as_bits(store)
    return Phase("fetch", name, (moved,), unrolled, shares, (), copies, copies and cached)


def _as_bits(store: Store) -> Store:
    """Return a store of a loaded narrow element as bits, which no thread converts."""
    value, kind = store.value, store.dtype
    if not isinstance(value, Load) or value.dtype != kind or kind.size >= MIN_COPY_BYTES or value.fill != 0:
        return store
    return evolve(store, value=evolve(value, dtype=kind.bits), dtype=kind.bits)


def _widths(value: Value, dtype: DType, copies: bool, widest: int, aligned: Mapping[str, int]) -> tuple[int, ...]:
    """Return the candidate vector widths of a fetch in elements, widest first: those of the widest access, or those of
    vectors of the element type.

    Elements narrower than a word that are not aligned to one are moved one by one: longer runs would only increase the
    stride between threads.
    """
    moved = min(widest, WIDEST_BYTES) // dtype.size if copies else max(vector_widths(dtype), default=0)
    most = max(widest // 4, moved)
    if isinstance(value, Load) and dtype.size < MIN_COPY_BYTES and (copies or vector_widths(dtype)):
        most = min(most, aligned.get(value.buffer, widest) // dtype.size)
    return tuple(n for n in (16, 8, 4, 2, 1) if n == most or n <= min(most, 8 // dtype.size)) if most > 1 else (1,)


def tile_value(tile: Tile, context: Context, dtype: DType) -> Value:
    """Return the value of a tile element, 0 where it is missing."""
    loaded = value = value_of(tile.value, context)
    while isinstance(loaded, Convert):
        loaded = loaded.arg
    if not tile.valid or (isinstance(loaded, Load) and loaded.fill == 0):
        return value
    return Op("select", (Test(tile.valid), value, Literal(0.0 if dtype.is_float else 0, dtype)), dtype)


def traversal(tile: Tile, context: Context) -> list[int]:
    """Order the coordinates by their stride in global memory, smallest last."""
    read = main_read(tile.value, frozenset(tile.coordinates))
    loaded = value_of(Read(read.tensor, read.indices), context)
    assert isinstance(loaded, Load)
    zero = dict.fromkeys(variables(loaded.address) | set(tile.coordinates), 0)

    def distance(position: int) -> int:
        if indirects(loaded.address):
            return abs(loaded.address.coefficient(tile.coordinates[position])) or 1 << 30
        moved = zero | {tile.coordinates[position]: 1}
        return abs(evaluate(loaded.address, moved) - evaluate(loaded.address, zero)) or 1 << 30

    return sorted(range(len(tile.coordinates)), key=distance, reverse=True)


def _divide_elements(
    tile: Tile, order: Sequence[int], thread: Var, width: int, size: int
) -> tuple[tuple[Share, ...], tuple[Var, ...]]:
    """Divide the tile's elements among the threads: trip, thread, element of a vector.

    Threads take neighbours in the order of memory, in any order of the tile. Where a trip would begin within a row,
    each element of a thread would take divisions and guards of its own; so most threads take whole rows, or planes, and
    step from trip to trip along the remaining coordinates. All threads take whole lines, where rows consist of them.
    """
    extents = [tile.coordinates[p].extent for p in order]
    steps = (*extents[:-1], extents[-1] // width)
    whole = whole_row_fetch(steps, thread.extent)
    if whole is not None and (lines := line_fetch(steps, thread.extent, width * size)):
        return _divide_lines(tile, order, thread, width, lines)
    if whole is not None:
        return _divide_rows(tile, order, thread, width, *whole)
    per_trip = thread.extent * width
    trips = -(-tile.count // per_trip)
    trip, element = Var(TRIP, trips), Var("fv", width)
    flat = as_index(trip) * per_trip + as_index(thread) * width + element
    guard = Guard(flat, 0, tile.count)
    valid = () if guard.always else (guard,)
    return _shares(tile, order, delinearise(flat, extents), valid), (trip, element)


def _divide_lines(
    tile: Tile, order: Sequence[int], thread: Var, width: int, lines: int
) -> tuple[tuple[Share, ...], tuple[Var, ...]]:
    """Divide a tile whose rows are so many lines: threads take the first line of all rows, then the second one."""
    extents = [tile.coordinates[p].extent for p in order]
    length = extents[-1] // lines
    trip, element = Var(TRIP, tile.count // (thread.extent * width)), Var("fv", width)
    flat = (as_index(trip) * thread.extent + as_index(thread)) * width + element
    line, *places, inside = delinearise(flat, (lines, *extents[:-1], length))
    return _shares(tile, order, (*places, line * length + inside), ()), (trip, element)


def _divide_rows(
    tile: Tile, order: Sequence[int], thread: Var, width: int, outer: int, rows: int
) -> tuple[tuple[Share, ...], tuple[Var, ...]]:
    """Divide a tile whose first `outer` coordinates number its rows; threads take `rows` of them at once."""
    extents = [tile.coordinates[p].extent for p in order]
    count, length = prod(extents[:outer]), prod(extents[outer:]) // width
    trip, element = Var(TRIP, -(-count // rows)), Var("fv", width)
    several = rows > 1
    row = as_index(trip) * rows + as_index(thread) // length if several else as_index(trip)
    inside = (as_index(thread) % length if several else as_index(thread)) * width + element
    guards = (Guard(as_index(thread), 0, rows * length), Guard(row, 0, count))
    places = (*delinearise(row, extents[:outer]), *delinearise(inside, extents[outer:]))
    return _shares(tile, order, places, tuple(g for g in guards if not g.always)), (trip, element)


def _shares(tile: Tile, order: Sequence[int], places: Sequence[Index], valid: tuple[Guard, ...]) -> tuple[Share, ...]:
    """Return the shares of a tile's coordinates; the guards of missing elements belong to the first."""
    return tuple(
        Share(tile.coordinates[p], place, Index(), valid if n == 0 else ())
        for n, (p, place) in enumerate(zip(order, places, strict=True))
    )


def _vectorises(store: Store, shares: Sequence[Share], element: Var, both: bool, aligned: Mapping[str, int]) -> bool:
    """Return whether the loads of a fetch move whole vectors, except those that do not depend on the element (and its
    store, where an asynchronous copy needs both).
    """
    places = {s.var: s.value for s in shares}
    valid = tuple(g for s in shares for g in s.valid)
    loads = [n for n in post_order((store,)) if isinstance(n, Load)]
    moving = [n for n in loads if element in variables(substitute(n.address, places))]
    if not moving or not all(_is_vector(load, places, valid, element, aligned) for load in moving):
        return False
    return not both or vector_address(substitute(store.address, places), element) is not None


def _is_vector(
    load: Load, places: Mapping[Var, Index], valid: tuple[Guard, ...], element: Var, aligned: Mapping[str, int]
) -> bool:
    """Return whether a load moves neighbours along a variable at once: they begin at a multiple of their number, exist
    together, and the tensor is aligned to one access.
    """
    load = evolve(load, address=substitute(load.address, places))
    load, element = words_along(load, element) or (load, element)
    nbytes = min(element.extent * load.dtype.size, WIDEST_BYTES)
    if load.space != "global" or aligned.get(load.buffer, nbytes) % nbytes:
        return False
    guards = tuple(Guard(substitute(g.index, places), g.low, g.high) for g in load.guards) + valid
    address = vector_address(load.address, element)
    return address is not None and vector_guards(guards, element) is not None
