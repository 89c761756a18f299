"""Verifier of kernels, over blocks and over threads.

It is a list of named checks, each stating one invariant. A check yields every violation it finds; `verify_kernel` runs
all of them, on the data-flow graph of each phase too, and reports everything at once. Races in shared memory are found
by walking the phases, which is another matter: `check_barriers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd, prod
from typing import TypeAlias

from attrs import frozen

from ..affine import Guard, Index, Var, indirects, variables
from ..dfg import (
    Accumulate,
    DfgNode,
    Initialise,
    LaneProduct,
    Load,
    Mma,
    MmaAccumulate,
    Pack,
    RegisterRead,
    RegisterWrite,
    Store,
    VectorLoad,
    VectorStore,
    WarpgroupMma,
    Window,
    buffer_accesses,
    own_indices,
    post_order,
)
from ..errors import VerifyError, quote
from ..kernel import (
    Barrier,
    BulkFetch,
    Item,
    Kernel,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Phase,
    loops,
    phases,
)
from ..machine import BOX_BYTES, MAP_UNIT_BYTES
from ..types import DType
from .dfg import CHECKS as DFG_CHECKS
from .dfg import registers
from .turns import check_turns


@frozen
class _Place:
    """A phase and the variables that loops around it bind."""

    phase: Phase
    loops: tuple[Var, ...]

    @property
    def words(self) -> str:
        return f"phase {quote(self.phase.name)}"


def _phases_with_loops(items: tuple[Item, ...], loops: tuple[Var, ...] = ()) -> Iterator[_Place]:
    for item in items:
        if isinstance(item, Phase):
            yield _Place(item, loops)
        elif isinstance(item, Loop):
            yield from _phases_with_loops(item.body, (*loops, item.var))


_MbarrierItem: TypeAlias = MbarrierInit | BulkFetch | MbarrierWait | MbarrierArrive


def _mbarrier_items(items: tuple[Item, ...], loops: tuple[Var, ...] = ()) -> Iterator[tuple[_MbarrierItem, set[Var]]]:
    """Yield items with mbarriers, and the variables of the loops around each."""
    for item in items:
        if isinstance(item, _MbarrierItem):
            yield item, {*loops}
        elif isinstance(item, Loop):
            yield from _mbarrier_items(item.body, (*loops, item.var))


def check_launch_possible(kernel: Kernel) -> Iterator[VerifyError]:
    """There are blocks and threads, and no name means two buffers."""
    if kernel.blocks < 1 or kernel.threads < 1:
        yield VerifyError(f"a launch of {kernel.blocks} blocks of {kernel.threads} threads")
    names = [b.name for b in kernel.shared]
    if len(set(names)) != len(names):
        yield VerifyError("two shared buffers have one name")


def check_nothing_read_is_written(kernel: Kernel) -> Iterator[VerifyError]:
    """No tensor is both read and written: blocks run in no order."""
    for tensor in sorted({*kernel.reads, *kernel.constants} & {*kernel.writes}):
        yield VerifyError(f"{quote(tensor)} is both read and written")


def check_buffers_declared(kernel: Kernel) -> Iterator[VerifyError]:
    """Accesses are of the kernel's tensors, constants or shared buffers.

    Loads are of read tensors, constants and shared buffers, stores of written tensors and shared buffers. Of a written
    tensor, a load is of an element that a store of its phase overwrites. An index reads a read tensor.
    """
    shared = {b.name for b in kernel.shared}
    loads = {"global": set(kernel.reads), "shared": shared, "constant": set(kernel.constants)}
    stores = {"global": set(kernel.writes), "shared": shared}
    for place in _phases_with_loops(kernel.items):
        stored = set(map(_global_element, place.phase.roots)) - {None}
        for node in post_order(place.phase.roots):
            if isinstance(node, (Load, VectorLoad)) and _global_element(node) in stored:
                continue
            for access in buffer_accesses(node):
                known = stores if access.stores else loads
                if access.buffer not in known.get(access.space, ()):
                    yield VerifyError(
                        f"{place.words}: {quote(access.buffer)} is no {access.space} memory that the kernel may touch"
                    )
            looked_up = (i for index in own_indices(node) for i in indirects(index) if not i.held)
            for tensor in {i.tensor for i in looked_up} - {*kernel.reads}:
                yield VerifyError(f"{place.words}: an index reads {quote(tensor)}, which the kernel does not")


def _global_element(node: DfgNode) -> tuple[str, Index] | None:
    """Return the tensor and the address that a node loads from global memory or stores to."""
    if isinstance(node, (Load, VectorLoad, Store, VectorStore)) and node.space == "global":
        return node.buffer, node.address
    return None


def check_replaced_elements_read_first(kernel: Kernel) -> Iterator[VerifyError]:
    """A thread loads an element of global memory before its store.

    The load is an operand of that store, or of an earlier one.
    """
    for phase in phases(kernel.items):
        met, stored = set[DfgNode](), set[tuple[str, Index] | None]()
        for root in phase.roots:
            new = [
                node for node in post_order((root,)) if node not in met and not isinstance(node, (Store, VectorStore))
            ]
            for element in filter(stored.__contains__, filter(None, map(_global_element, new))):
                yield VerifyError(f"phase {quote(phase.name)}: {quote(element[0])} is read after it is written")
            met.update(new)
            stored.add(_global_element(root))


def check_accesses_typed(kernel: Kernel) -> Iterator[VerifyError]:
    """Every access has the element type of its buffer.

    Fetches may move its bits.
    """
    shared: Mapping[str, DType] = {b.name: b.dtype for b in kernel.shared}
    for place in _phases_with_loops(kernel.items):
        for access in (a for node in post_order(place.phase.roots) for a in buffer_accesses(node)):
            held = (shared if access.space == "shared" else kernel.dtypes).get(access.buffer, access.dtype)
            moved = place.phase.kind == "fetch" and held is not None and access.dtype is held.bits
            if access.dtype is not None and held is not access.dtype and not moved:
                yield VerifyError(f"{place.words}: {quote(access.buffer)} holds {held}, accessed as {access.dtype}")


def check_variables_bound(kernel: Kernel) -> Iterator[VerifyError]:
    """Every variable is bound.

    It belongs to the launch, to a definition before it, to a loop around it, or to the phase itself; the end of a loop
    is a definition, a scope of a phase one of its loops.
    """
    known = {Var("blk", kernel.blocks), Var("tid", kernel.threads), kernel.turn, *(kernel.done or ())}
    for define in kernel.defines:
        yield from _unbound(f"definition of {define.var.name}", define.value, known)
        known.add(define.var)
    ends = {loop.until for loop in loops(kernel.items) if loop.until is not None}
    for end in sorted(v.name for v in ends - known):
        yield VerifyError(f"nothing defines {end}, at which a loop ends")
    for place in _phases_with_loops(kernel.items):
        phase = place.phase
        outside = {*known, *place.loops}
        own = outside | {*phase.unrolled}
        if alien := {v.name for v in phase.scopes} - {v.name for v in phase.unrolled}:
            yield VerifyError(f"{place.words}: no loop has the scopes {', '.join(sorted(alien))}")
        for guard in phase.when:
            yield from _unbound(place.words, guard.index, outside)
        for share in phase.shares:
            for index in (share.value, share.register, *(g.index for g in share.valid)):
                yield from _unbound(place.words, index, own)
        own |= {s.var for s in phase.shares} | _axes_of(phase)
        for node in post_order(phase.roots):
            for index in own_indices(node):
                yield from _unbound(place.words, index, own | _bound_by(node))


def _bound_by(node: DfgNode) -> set[Var]:
    if isinstance(node, (MmaAccumulate, Mma)):
        return {*node.over, *node.axes}
    if isinstance(node, RegisterWrite):
        return {*node.axes}
    return {*node.over} if isinstance(node, (Accumulate, WarpgroupMma)) else set()


def _axes_of(phase: Phase) -> set[Var]:
    """Return the variables that accumulations and windows of a phase range over."""
    found: set[Var] = set()
    for node in post_order(phase.roots):
        found |= (
            {*node.axes} if isinstance(node, Window) else {node.axis} if isinstance(node, Pack) else _bound_by(node)
        )
    return found


def _unbound(where: str, index: Index, known: set[Var]) -> Iterator[VerifyError]:
    if names := sorted(v.name for v in variables(index) - known if v.extent > 1):
        yield VerifyError(f"{where}: nothing binds {', '.join(names)} in {index.text}")


def check_registers_initialised(kernel: Kernel) -> Iterator[VerifyError]:
    """Registers are set before they are added to or read.

    This holds for reductions and operands, in the order of the phases.
    """
    ready: set[str] = set()
    for phase in phases(kernel.items):
        for node in post_order(phase.roots):
            if isinstance(node, (Initialise, RegisterWrite)):
                ready.add(node.name)
            for name in registers(node):
                if name not in ready:
                    yield VerifyError(
                        f"phase {quote(phase.name)}: the registers of {quote(name)} are used before they are set"
                    )


def check_registers_read(kernel: Kernel) -> Iterator[VerifyError]:
    """Registers are read before another phase sets them again.

    This holds in the order of the phases: of two phases that write one name for later readers, both readers would see
    the second value.
    """
    unread: dict[str, Phase] = {}
    for phase in phases(kernel.items):
        nodes = list(post_order(phase.roots))
        for name in (name for node in nodes for name in registers(node)):
            unread.pop(name, None)
        for name in dict.fromkeys(node.name for node in nodes if isinstance(node, RegisterWrite)):
            if name in unread:
                former = quote(unread[name].name)
                yield VerifyError(
                    f"phase {quote(phase.name)}: the registers of {quote(name)} are set again before anything reads "
                    f"what phase {former} kept there"
                )
            unread[name] = phase


def check_tensor_maps(kernel: Kernel) -> Iterator[VerifyError]:
    """Tensor maps are possible, of read tensors, and have one name each."""
    if len({m.name for m in kernel.maps}) != len(kernel.maps):
        yield VerifyError("two tensor maps have one name")
    for tensor_map in kernel.maps:
        yield from (VerifyError(f"tensor map {quote(tensor_map.name)}: {fault}") for fault in tensor_map.faults())
        if tensor_map.tensor not in kernel.reads or kernel.dtypes[tensor_map.tensor] is not tensor_map.dtype:
            yield VerifyError(f"tensor map {quote(tensor_map.name)}: no tensor {quote(tensor_map.tensor)} is read so")


def check_bulk_fetches(kernel: Kernel) -> Iterator[VerifyError]:
    """Bulk copies move boxes into buffers of their type and swizzle.

    Mbarriers are shared buffers.
    """
    maps, buffers = {m.name: m for m in kernel.maps}, {b.name: b for b in kernel.shared}
    known = {Var("blk", kernel.blocks), kernel.turn, *(kernel.done or ()), *(d.var for d in kernel.defines)}
    parts = (kernel.items, *(producer.body for producer in kernel.producer))
    made = [each for items in parts for each in _mbarrier_items(items)]
    for item, outside in made:
        where = f"mbarriers {quote(item.barriers)}"
        if item.barriers not in buffers or buffers[item.barriers].dtype is not DType.U64:
            yield VerifyError(f"{where} are no shared buffer of u64")
        if isinstance(item, MbarrierWait):
            yield from (e for i in (item.slot, item.parity) for e in _unbound(where, i, known | outside))
        if isinstance(item, MbarrierArrive):
            yield from _unbound(where, item.slot, known | outside)
        if not isinstance(item, BulkFetch):
            continue
        for index in (item.slot, *(g.index for g in item.when)):
            yield from _unbound(where, index, known | outside)
        for copy in item.copies:
            tensor_map, buffer = maps.get(copy.map), buffers.get(copy.buffer)
            if tensor_map is None or buffer is None or len(copy.coordinates) != len(tensor_map.dims):
                yield VerifyError(f"{where}: no copy by map {quote(copy.map)} to {quote(copy.buffer)}")
                continue
            if (tensor_map.dtype, tensor_map.swizzle) != (buffer.dtype, buffer.swizzle):
                yield VerifyError(f"{where}: buffer {quote(copy.buffer)} has another type or swizzle than its copies")
            for index in (*copy.coordinates, copy.address):
                yield from _unbound(where, index, known | outside)
            if _steps_of(copy.address) * buffer.dtype.size % BOX_BYTES:
                yield VerifyError(f"{where}: boxes begin at multiples of {BOX_BYTES} bytes of {quote(copy.buffer)}")
            if _steps_of(copy.coordinates[0]) * buffer.dtype.size % MAP_UNIT_BYTES:
                yield VerifyError(f"{where}: boxes begin at multiples of {MAP_UNIT_BYTES} bytes of {quote(copy.map)}")


def _steps_of(index: Index) -> int:
    """Return the greatest number that all values of an index are multiples of."""
    return gcd(index.const, *(factor for _, factor in index.terms))


def check_producers(kernel: Kernel) -> Iterator[VerifyError]:
    """At most one producer only waits and fetches.

    Threads that compute meet before it begins, and again only when nothing that it fetches is awaited.
    """
    if len(kernel.producer) > 1:
        yield VerifyError(f"{len(kernel.producer)} producers")
    for producer in kernel.producer:
        every = [i for item in producer.body for i in (item.body if isinstance(item, Loop) else (item,))]
        for item in every:
            if not isinstance(item, (MbarrierWait, BulkFetch)):
                yield VerifyError(f"a producer neither waits nor fetches: {type(item).__name__}")
        inner = [item for loop in loops(kernel.items) for item in loop.body if isinstance(item, Barrier)]
        first, *rest = (n for n, item in enumerate(kernel.items) if isinstance(item, Barrier))
        waits = [n for n, item in enumerate(kernel.items) if _waits_for_bulk(item)]
        if inner or any(n < waits[-1] for n in rest if waits) or any(n < first for n in waits):
            yield VerifyError("threads beside a producer meet once before it begins, or when it has ended")


def _waits_for_bulk(item: Item) -> bool:
    """Return whether an item waits for bulk copies."""
    return isinstance(item, MbarrierWait) or (isinstance(item, Loop) and any(map(_waits_for_bulk, item.body)))


def check_graphs(kernel: Kernel) -> Iterator[VerifyError]:
    """The data-flow graph of each phase satisfies its own checks."""
    for phase in phases(kernel.items):
        for check in DFG_CHECKS:
            for problem in check(phase.roots):
                yield VerifyError(f"phase {quote(phase.name)}: {problem}")


def check_threads_alone(kernel: Kernel) -> Iterator[VerifyError]:
    """A kernel over threads has no shares, and valid register numbers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for phase in phases(kernel.items):
        if phase.shares:
            yield VerifyError(f"phase {quote(phase.name)} still divides {', '.join(s.var.name for s in phase.shares)}")
            continue
        for node in post_order(phase.roots):
            if isinstance(node, (Initialise, RegisterWrite)):
                shapes[node.name] = node.shape
            if isinstance(node, (RegisterRead, Accumulate, LaneProduct, MmaAccumulate, RegisterWrite)):
                yield from _check_places(phase, node.name, zip(node.at, shapes.get(node.name, ()), strict=False))
            elif isinstance(node, Mma) and node.name in shapes:
                count = prod(shapes[node.name])
                yield from _check_places(phase, node.name, ((place, count) for place in node.results))
            elif isinstance(node, WarpgroupMma) and node.name in shapes:
                count, last = prod(shapes[node.name]), (node.columns // 4 - 1) * node.pitch
                ends = (row + place for row in (node.upper, node.lower) for place in (0, last))
                yield from _check_places(phase, node.name, ((place, count) for place in ends))


def _check_places(phase: Phase, name: str, places: Iterable[tuple[Index, int]]) -> Iterator[VerifyError]:
    for place, count in places:
        if not Guard(place, 0, count).always:
            yield VerifyError(f"phase {quote(phase.name)}: register {place.text} of {quote(name)}, which has {count}")


Check: TypeAlias = Callable[[Kernel], Iterator[VerifyError]]

#: Checks of kernels over blocks and over threads.
CHECKS: tuple[Check, ...] = (
    check_launch_possible,
    check_nothing_read_is_written,
    check_buffers_declared,
    check_replaced_elements_read_first,
    check_accesses_typed,
    check_variables_bound,
    check_registers_initialised,
    check_registers_read,
    check_tensor_maps,
    check_bulk_fetches,
    check_producers,
    check_turns,
    check_graphs,
)
#: Checks of kernels over threads.
THREAD_CHECKS: tuple[Check, ...] = (*CHECKS, check_threads_alone)


def kernel_violations(kernel: Kernel, threads: bool = False) -> list[VerifyError]:
    """Return every broken invariant of a kernel over blocks or threads."""
    return [error for check in (THREAD_CHECKS if threads else CHECKS) for error in check(kernel)]
