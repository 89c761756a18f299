"""State of lowering one segment, and the building blocks of its phases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import define, evolve, field

from ...ir import (
    PEERS,
    SORT_ORDERS,
    Accumulate,
    DType,
    Expr,
    FusedGroup,
    Index,
    Initialise,
    Item,
    LaneReduce,
    Phase,
    Read,
    ReduceDim,
    Reduction,
    RegisterRead,
    Root,
    Share,
    SharedBuffer,
    Storage,
    Target,
    TileDim,
    Value,
    Var,
    as_index,
    radix_words,
    read_ranks,
    selection_room,
    selection_words,
    sorts_by_radix,
)
from ..geometry import column_run, holds_rows
from .index_values import Context
from .layout import AxisBinding, BlockLayout, Frame, bind_dims, read_padding


@define
class SegmentState:
    """State of lowering one segment.

    It collects row roots for the phase that shares their loads, the shared-memory buffers of cached rows
    (`row_caches`), the number of staged elements of each type (`staged_elements`), and the elements of earlier segments
    that registers hold (`held`).
    """

    layout: BlockLayout
    frame: Frame
    storages: Mapping[str, Storage]
    target: Target
    aligned: Mapping[str, int]
    items: list[Item] = field(factory=list)
    roots: list[Root] = field(factory=list)
    row: list[Var] = field(factory=list)
    shares: dict[Var, Share] = field(factory=dict)
    row_caches: dict[Read, SharedBuffer] = field(factory=dict)
    staged_elements: dict[DType, int] = field(factory=dict)
    held: dict[Expr, Value] = field(factory=dict)

    @property
    def group(self) -> FusedGroup:
        return self.layout.group

    def phase(
        self, kind: str, name: str, roots: Sequence[Root], row: Sequence[Var], shares: Mapping[Var, Share]
    ) -> Phase:
        """Return a phase of this segment.

        Its frame gives the participating threads and the unrolled variables.
        """
        unrolled = tuple(v for v in row if v.extent > 1) + self.frame.unrolled
        return Phase(
            kind, f"{self.frame.prefix}{name}", tuple(roots), unrolled, tuple(shares.values()), self.frame.when
        )

    def flush(self, name: str) -> None:
        """Close the collected phase."""
        if self.roots:
            self.items.append(self.phase("exit", name, self.roots, self.row, self.shares))
        self.roots, self.row = [], []
        self.shares = {s.var: s for s in self.frame.shares}

    def bind(self, dims: Sequence[ReduceDim], locals_: Sequence[Var], starts: Sequence[Index]) -> AxisBinding:
        """Bind axes to tiles of the frame and elements of K blocks.

        K blocks begin at `starts`.
        """
        frame = self.frame
        every: tuple[TileDim | ReduceDim, ...] = (*frame.schedule.dims, *dims)
        places, valid = bind_dims(every, (*frame.tiles, *locals_), (*frame.starts, *starts))
        return AxisBinding(places, every, (*frame.tiles, *locals_), valid)

    def context(self, binding: AxisBinding, staged: Mapping[Expr, Value]) -> Context:
        """Return the environment of the segment's indices and values.

        `staged` operands are read from tiles.
        """
        at = tuple(as_index(u) for u in self.frame.tiles)
        row = tuple(map(as_index, binding.locals[len(at) :]))
        held = {
            r.name: RegisterRead(r.name, (*at, *row) if r.along else at, self.group.tensors[r.name].dtype)
            for r in self.frame.segment.reductions
        }
        boxes, pitches, names = self.layout.boxes, self.layout.pitches, self.layout.names
        whole = frozenset(t for t in boxes if holds_rows(self.group, t))
        ends = frozenset(t for t in boxes if read_padding(self.group, t))
        return Context(
            self.group,
            self.storages,
            binding,
            {**self.held, **staged},
            held,
            boxes,
            pitches,
            names,
            whole=whole,
            filled=ends,
        )

    def register(self, reduction: Reduction, what: str = "") -> RegisterRead:
        """Return the read of a reduction's register, or of one beside it."""
        name = f"{reduction.name}.{what}" if what else reduction.name
        return RegisterRead(name, tuple(map(as_index, self.frame.tiles)), self.group.tensors[reduction.name].dtype)

    def assign(self, reduction: Reduction, what: str, value: Value) -> list[Root]:
        """Return the roots that assign a register beside a reduction's."""
        held = self.register(reduction, what)
        begin = evolve(self.initialise(reduction), name=held.name, combine="sum")
        return [begin, Accumulate(held.name, held.at, "sum", value, (), held.dtype)]

    def initialise(self, reduction: Reduction) -> Initialise:
        """Return the identities that a reduction's registers begin with."""
        dtype = self.group.tensors[reduction.name].dtype
        return Initialise(reduction.name, self._shape(reduction), reduction.combine, dtype)

    def _shape(self, reduction: Reduction) -> tuple[int, ...]:
        """Return the shape of a thread's values of a reduction: each dim, and the row."""
        number = self.frame.segment.reductions.index(reduction)
        chunks = (d.block_k for d in self.frame.schedule.reductions[number].dims)
        row = tuple(chunk // self.frame.schedule.reduction_threads for chunk in chunks) if reduction.along else ()
        return (*(d.thread for d in self.frame.schedule.dims), *row)

    def lane_reduce(self, reduction: Reduction, shifted: str = "") -> LaneReduce:
        """Combine a reduction across its threads, or along their row.

        All such reductions of the kernel share one scratch buffer.
        """
        dtype = self.group.tensors[reduction.name].dtype
        lanes = self.frame.schedule.reduction_threads
        # The last group may be incomplete: its idle threads read each other's places all the same.
        elements = -(-self.layout.schedule.threads // lanes) * lanes
        ranks: tuple[int, ...] = ()
        held = DType.U64 if reduction.along in SORT_ORDERS else dtype  # an element with its place
        if reduction.along in SORT_ORDERS:
            ranks = self._selected_ranks(reduction)
            count = self._shape(reduction)[-1]
            if ranks:
                elements = max(elements, selection_words((ranks[0], ranks[1]), reduction.reduce[0].extent))
            elif sorts_by_radix(count, lanes):
                elements = radix_words(count, elements)
        scratch = SharedBuffer("lanes", held, elements)
        known = self.layout.buffers.get("lanes", scratch)
        self.layout.buffers["lanes"] = max(known, scratch, key=lambda b: b.elements * b.dtype.size)
        vector = self.frame.schedule.row_vector if reduction.along else 1
        shape = self._shape(reduction)
        stride = self.frame.schedule.threads // lanes if column_run(self.frame.segment, self.group.shared) else 1
        blocks, place = self.frame.schedule.cluster, 0
        if blocks > 1:
            peers = self.layout.buffers.get(PEERS, SharedBuffer(PEERS, DType.U64, 0))
            place = peers.elements
            self.layout.buffers[PEERS] = evolve(peers, elements=place + blocks * prod(shape) * stride + 1)
        return LaneReduce(
            reduction.name, shape, reduction.combine, dtype, lanes, reduction.along, vector, ranks=ranks,
            blocks=blocks, place=place, stride=stride, shifted=shifted, tree=self.target.invariant and stride > 1,
        )  # fmt: skip

    def _selected_ranks(self, reduction: Reduction) -> tuple[int, ...]:
        """Return the ranks that a sort selects, none where it orders whole rows."""
        ranks = read_ranks(self.frame.segment, reduction)
        alone = self.frame.schedule.reduction_threads == self.layout.schedule.threads
        return ranks if alone and selection_room(ranks, reduction.reduce[0].extent) else ()


def row_share(frame: Frame, local: Var) -> tuple[Share, tuple[Var, ...]]:
    """Spread a row's elements over the threads, `row_vector` neighbours each."""
    lanes, width = frame.schedule.reduction_threads, frame.schedule.row_vector
    if lanes == 1 and width == 1:
        return Share(local, as_index(local), as_index(local)), (local,)
    group, element = Var(f"{local.name}o", local.extent // (lanes * width)), Var(f"{local.name}i", width)
    value = as_index(group) * (lanes * width) + as_index(frame.lane) * width + element
    return Share(local, value, as_index(group) * width + element), (group, element)
