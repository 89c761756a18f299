"""Register staging: fetches through registers, for tiles that transpose memory.

A tile that threads read along its columns, of a matrix that lies along its rows, is fetched in two phases. Each thread
loads a few neighbours of the tile, one element at a time, so that the lanes of a warp read memory along its own
direction; after the products of a K block, and the barrier, it stores them as one vector:

    fetch tile[k, 4*m .. 4*m + 3]  ->  keep c[e] = x[4*m + e, k]; ...; store tile[k, 4*m .. 4*m + 3] = c[0 .. 3]

The products hide the loads' latency, as with asynchronous copies, which would move words one by one; and their own
loads stay vectors along the columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve

from ....ir import (
    Guard,
    Index,
    Load,
    Phase,
    Read,
    RegisterRead,
    RegisterWrite,
    Root,
    Share,
    SharedBuffer,
    Store,
    Value,
    Var,
    as_index,
    delinearise,
    post_order,
    substitute,
    vector_address,
    vector_widths,
    with_operands,
)
from ..fetch import TRIP, tile_value, traversal
from ..index_values import Context
from ..layout import AxisBinding, Tile


def register_staging_phases(
    tile: Tile, buffer: SharedBuffer, slot: Index, context: Context, thread: Var, name: str
) -> tuple[Phase, Phase] | None:
    """Return the load and the store phase of one stage.

    `slot` is the stage's number. None where no vectors of the tile can be stored whose elements lie at a distance in
    memory, or are computed for a matrix.
    """
    context = evolve(context, binding=AxisBinding({}, (), (), {}), extra=tile.valid)
    order = traversal(tile, context)
    inner = next((n for n in order if tile.pitch[n] == 1 and tile.coordinates[n].extent > 1), order[-1])
    if inner == order[-1] and (tile.matrix is None or isinstance(tile.value, Read)):
        return None
    value = tile_value(tile, context, buffer.dtype)
    address = slot * tile.size + tile.address(tile.coordinates)
    loads = [n for n in post_order([value]) if isinstance(n, Load) and n.space == "global"]
    for width in vector_widths(buffer.dtype):
        if tile.coordinates[inner].extent % width:
            continue
        shares, (trip, element) = _division(tile, order, inner, thread, width)
        if vector_address(substitute(address, {s.var: s.value for s in shares}), element) is None:
            continue
        at, shape = (as_index(trip), as_index(element)), (trip.extent, width)
        names = [f"{name}.{n}" for n in range(len(loads))]
        held: dict[Value, Value] = {o: RegisterRead(n, at, o.dtype) for n, o in zip(names, loads, strict=True)}
        keeps: list[Root] = [RegisterWrite(n, at, shape, o, o.dtype) for n, o in zip(names, loads, strict=True)]
        store = Store("shared", buffer.name, address, _replace_loads(value, held), buffer.dtype)
        unrolled = tuple(v for v in (trip, element) if v.extent > 1)
        return (
            Phase("fetch", name, tuple(keeps), unrolled, shares),
            Phase("fetch", f"{name}_store", (store,), unrolled, shares),
        )
    return None


def _division(
    tile: Tile, order: Sequence[int], inner: int, thread: Var, width: int
) -> tuple[tuple[Share, ...], tuple[Var, Var]]:
    """Divide the vectors of a tile among the threads, in the order of memory, each with all of its elements."""
    count = tile.count // width
    trip, element = Var(TRIP, -(-count // thread.extent)), Var("fv", width)
    flat = as_index(trip) * thread.extent + thread
    guard = Guard(flat, 0, count)
    valid = () if guard.always else (guard,)
    extents = [tile.coordinates[n].extent // (width if n == inner else 1) for n in order]
    places = dict(zip(order, delinearise(flat, extents), strict=True))
    places[inner] = places[inner] * width + element
    shares = (Share(tile.coordinates[n], places[n], Index(), valid if n == order[0] else ()) for n in order)
    return tuple(shares), (trip, element)


def _replace_loads(value: Value, found: Mapping[Value, Value]) -> Value:
    """Return a value over register reads in place of its loads."""
    return found[value] if value in found else with_operands(value, lambda operand: _replace_loads(operand, found))
