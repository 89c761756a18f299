"""Register staging: fetches through registers, for tiles that transpose memory.

A tile that threads read along its columns, of a matrix that lies along its rows, is fetched in two phases. Each thread
loads a few neighbours of the tile, one element at a time, so that the lanes of a warp read memory along its own
direction; after the products of a K block, and the barrier, it stores them as one vector:

    fetch tile[k, 4*m .. 4*m + 3]  ->  keep c[e] = x[4*m + e, k]; ...; store tile[k, 4*m .. 4*m + 3] = c[0 .. 3]

The products hide the loads' latency, as with asynchronous copies, which would move words one by one; and their own
loads stay vectors along the columns.

Any fetch of single elements that no copy moves has two such phases where products lie between them
(`split_element_moves`): else a compiler stores some elements before it loads others, and waits for memory many times.
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
from ...geometry import MIN_COPY_BYTES
from ..fetch import TRIP, tile_value, traversal
from ..index_values import Context
from ..layout import AxisBinding, Tile

#: Elements of a fetch that a thread keeps in registers while it multiplies.
MAX_HELD_ELEMENTS = 32


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
        keeps, held = _hold_loads(loads, name, (as_index(trip), as_index(element)), (trip.extent, width))
        store = Store("shared", buffer.name, address, _replace_loads(value, held), buffer.dtype)
        unrolled = tuple(v for v in (trip, element) if v.extent > 1)
        return (
            Phase("fetch", name, keeps, unrolled, shares),
            Phase("fetch", f"{name}_store", (store,), unrolled, shares),
        )
    return None


def split_element_moves(phase: Phase) -> tuple[Phase, ...]:
    """Return the load and the store phase of a fetch.

    Its elements are few, and moved one by one by no copy; another fetch stays alone. Registers hold bits: a conversion
    to a number would wait for its load.
    """
    (root,) = phase.roots
    single = [v.name for v in phase.unrolled] == [TRIP] and phase.unrolled[0].extent <= MAX_HELD_ELEMENTS
    if not single or not isinstance(root, Store) or not isinstance(root.value, Load) or root.value.fill != 0:
        return (phase,)
    if phase.asynchronous and root.dtype.size >= MIN_COPY_BYTES:
        return (phase,)
    (trip,), kind = phase.unrolled, root.dtype.bits
    load = evolve(root.value, dtype=kind)
    (write,), held = _hold_loads([load], phase.name, (as_index(trip),), (trip.extent,))
    loading = evolve(phase, roots=(write,), asynchronous=False)
    return loading, evolve(loading, name=f"{phase.name}_store", roots=(evolve(root, value=held[load], dtype=kind),))


def load_before_computing(phase: Phase) -> tuple[Phase, ...]:
    """Return the load and store phases of a fetch of computed elements.

    Both stand together; another fetch stays alone. Loads of an element do not pass the branches of a division before.
    """
    root, *others = phase.roots
    if others or not isinstance(root, Store) or isinstance(root.value, Load):
        return (phase,)
    if [v.name for v in phase.unrolled] != [TRIP]:
        return (phase,)
    loads = [n for n in post_order([root.value]) if isinstance(n, Load) and n.space == "global"]
    (trip,) = phase.unrolled
    if not loads or len(loads) * trip.extent > MAX_HELD_ELEMENTS:
        return (phase,)
    keeps, held = _hold_loads(loads, phase.name, (as_index(trip),), (trip.extent,))
    store = evolve(root, value=_replace_loads(root.value, held))
    return evolve(phase, roots=keeps), evolve(phase, name=f"{phase.name}_store", roots=(store,))


def _hold_loads(
    loads: Sequence[Load], name: str, at: tuple[Index, ...], shape: tuple[int, ...]
) -> tuple[tuple[RegisterWrite, ...], dict[Value, Value]]:
    """Return the register writes of loads, and the registers that hold each of them."""
    names = [f"{name}.{n}" for n in range(len(loads))]
    writes = (RegisterWrite(n, at, shape, load, load.dtype) for n, load in zip(names, loads, strict=True))
    return tuple(writes), {load: RegisterRead(n, at, load.dtype) for n, load in zip(names, loads, strict=True)}


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
