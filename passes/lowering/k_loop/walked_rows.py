"""Walked rows: a thread computes prefix scans element by element.

    acc[i, r] = acc[i, r - 1] + f(x[i, r]);   y[i, r] = g(acc[i, r], x[i, r])
      ->  carry = 0;   ahead = x[i, block 0]
          for each block of r:   for each r of it:  state = carry + f(ahead[r]);  y[i, r] = g(state, ahead[r])
                                                    ahead[r] = x[i, r of the next block]
                                 carry = state

No thread needs values of another one, so rows of any length take one trip over memory. Neighbouring threads have
neighbouring rows: their accesses are coalesced where memory runs along the instances. The elements of a whole block are
in flight all the time: none of their loads depends on a state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from ....ir import (
    COMBINERS,
    SCAN_MODES,
    Convert,
    Guard,
    Index,
    Initialise,
    Item,
    Literal,
    Loop,
    Op,
    Read,
    ReduceDim,
    Reduction,
    RegisterRead,
    RegisterWrite,
    Root,
    Schedule,
    Segment,
    Target,
    Test,
    Value,
    Var,
    as_index,
    clamp,
    is_recurrence,
)
from ...geometry import reads_ahead, words_ahead
from ..index_values import value_of
from ..layout import AxisBinding
from ..outputs import store_value
from ..segment_state import SegmentState
from .walked_sums import WalkedSum

#: Registers of a thread that has some twenty loads in flight, and those that it needs besides elements loaded ahead.
STREAMING_REGISTERS, OTHER_REGISTERS = 128, 56


def streaming_blocks(schedule: Schedule, target: Target) -> int:
    """Return an SM's blocks of threads with many loads in flight."""
    most = target.registers_per_sm // (schedule.threads * STREAMING_REGISTERS)
    return max(1, min(most, -(-schedule.blocks // target.NUM_SM)))


def walk_rows(state: SegmentState) -> None:
    """Emit the states' beginning, and the loop over blocks of rows."""
    segment, loops = state.frame.segment, state.frame.schedule.reductions
    (dim,) = {d for r, loop in zip(segment.reductions, loops, strict=True) if r.along for d in loop.dims}
    walk = _Walk(state, dim, Var(f"{state.frame.prefix}it", dim.trips))
    state.items += [state.phase("compute", "init", list(walk.beginning()), (), state.shares), *walk.loop()]


@frozen
class _Walk:
    """Lowering of a walked row: its K blocks, one for each value of `step`.

    `ahead` has the register of each element of a block that is loaded while the block before is computed.
    """

    state: SegmentState
    dim: ReduceDim
    step: Var
    ahead: Mapping[Read, str] = field(init=False)

    @ahead.default
    def _ahead(self) -> dict[Read, str]:
        found = (r for r in reads_ahead(self.segment) if self.dim.trips > 1 and r.tensor in self.state.group.inputs)
        return {read: f"{self.state.frame.prefix}.{n}" for n, read in enumerate(found)}

    @property
    def segment(self) -> Segment:
        """Segment of the row."""
        return self.state.frame.segment

    @property
    def scans(self) -> list[Reduction]:
        """Prefix scans and recurrences of the row."""
        return [r for r in self.segment.reductions if r.along]

    @property
    def backwards(self) -> bool:
        """Return whether the row is walked from its end."""
        return SCAN_MODES[self.scans[0].along][0]

    def block(self, step: Index) -> Index:
        """Return the number of a step's block in the row."""
        return as_index(self.dim.trips - 1) - step if self.backwards else step

    def places(self, step: Index) -> list[Index]:
        """Return the places of a step's elements, in order."""
        places = [self.block(step) * self.dim.block_k + n for n in range(self.dim.block_k)]
        return places[::-1] if self.backwards else places

    def beginning(self) -> Iterator[Root]:
        """Yield the states' identities, and the first block's loads."""
        for reduction in self.scans:
            carry = self.carry(reduction)
            yield Initialise(carry.name, self.shape, reduction.combine, carry.dtype)
        yield from (each.begin() for each in self.sums if each.along)
        yield from self.load(Index(), "ahead")

    def loop(self) -> list[Item]:
        """Return the loop over blocks."""
        roots: list[Root] = []
        before = {r.name: self.carry(r) for r in self.scans}
        following = clamp(as_index(self.step) + 1, 0, self.dim.trips - 1)  # the last block is loaded again, for nothing
        later = [*self.load(following, "next" if self.loads_first else "ahead")]
        count = len(self.ahead)
        for number, place in enumerate(self.places(as_index(self.step))):
            before = self.element(number, place, before, roots)
            roots += [] if self.loads_first else later[number * count : (number + 1) * count]
        carry: list[Root] = [self.write(self.carry(r), before[r.name]) for r in self.scans]
        if self.loads_first:
            numbers = range(self.dim.block_k)
            held = ((self.register(r, n), self.register(r, n, "next")) for n in numbers for r in self.ahead)
            carry += [self.write(now, new) for now, new in held]
        short, whole = ([each for each in self.sums if each.along is along] for along in (False, True))
        body = (
            *self.phases(("compute", "next", later if self.loads_first else [])),
            *self.phases(("compute", "sums", [each.begin() for each in short])),
            self.state.phase("exit", "walk", roots, (), self.state.shares),
            *self.phases(*self.ends(short, self.block(as_index(self.step)))),
            self.state.phase("compute", "carry", carry, (), self.state.shares),
        )
        loop = [Loop(self.step, body)] if self.dim.trips > 1 else [*body]
        return [*loop, *self.phases(*self.ends(whole, Index()))]

    @property
    def sums(self) -> list[WalkedSum]:
        """Sums over instances."""
        return [WalkedSum(self.state, output, self.dim) for output in self.segment.column_sums]

    def ends(self, sums: Sequence[WalkedSum], block: Index) -> Iterator[tuple[str, str, list[Root]]]:
        """Yield the phases that exchange sums, and store them."""
        for number, each in enumerate(sums):
            scratch = self.state.layout.buffers.get("lanes", each.scratch())
            larger = max(scratch, each.scratch(), key=lambda b: b.elements * b.dtype.size)
            exchanges = list(each.exchanges())
            if exchanges:
                self.state.layout.buffers["lanes"] = larger
            yield "compute", f"exchange{number}", [*exchanges]
        yield "exit", "sums", [store for each in sums for store in each.stores(block)]

    def phases(self, *parts: tuple[str, str, Sequence[Root]]) -> list[Item]:
        """Return phases of some roots, without empty ones."""
        return [self.state.phase(kind, name, roots, (), self.state.shares) for kind, name, roots in parts if roots]

    def element(
        self, number: int, place: Index, before: Mapping[str, RegisterRead], roots: list[Root]
    ) -> dict[str, RegisterRead]:
        """Add the roots of one element; return the states after it."""
        binding, missing = self.bind(place)
        context = self.state.context(binding, {r: self.register(r, number) for r in self.ahead})
        context = evolve(context, extra=missing)
        after: dict[str, RegisterRead] = {}
        for reduction in self.scans:
            old = before[reduction.name]
            after[reduction.name] = new = evolve(old, name=f"{reduction.name}.{number}")
            own = evolve(context, held={**context.held, reduction.name: old})
            value, combiner = value_of(reduction.body, own), COMBINERS[reduction.combine]
            value = value if value.dtype is old.dtype else Convert(value, old.dtype)
            if is_recurrence(reduction):
                roots.append(self.write(new, value))
                context = evolve(context, held={**context.held, reduction.name: new})
                continue
            if missing:
                nothing = Literal(combiner.identity(value.dtype), value.dtype)
                value = Op("select", (Test(missing), value, nothing), value.dtype)
            roots.append(self.write(new, Op(combiner.fn, (old, value), old.dtype)))
            held = old if SCAN_MODES[reduction.along][1] else new
            context = evolve(context, held={**context.held, reduction.name: held})
        plain = (output for output in self.segment.outputs if not output.across)
        roots += [store_value(self.state, output, binding, (), context) for output in plain]
        roots += [each.add(number, binding, context) for each in self.sums]
        return after

    @property
    def loads_first(self) -> bool:
        """Return whether a block is loaded whole before the one ahead."""
        layout, target, schedule = self.state.layout, self.state.target, self.state.frame.schedule
        blocks = streaming_blocks(layout.schedule, target)
        most = min(target.max_registers, target.registers_per_sm // (layout.schedule.threads * blocks))
        dims, threads = [d.axes for d in schedule.dims], [d.thread for d in schedule.dims]
        words = words_ahead(self.segment, self.state.group.tensors, dims, threads, self.dim.block_k)
        return self.dim.trips > 1 and int(2 * words) + OTHER_REGISTERS <= most

    def load(self, step: Index, into: str) -> Iterator[Root]:
        """Yield the loads of a block's elements."""
        for number, place in enumerate(self.places(step)):
            binding, missing = self.bind(place)
            context = evolve(self.state.context(binding, {}), extra=missing)
            for read in self.ahead:
                yield self.write(self.register(read, number, into), value_of(read, context))

    @property
    def local(self) -> Var:
        """Variable of the only element that is bound."""
        return Var(f"{self.state.frame.prefix}w", 1)

    def bind(self, place: Index) -> tuple[AxisBinding, tuple[Guard, ...]]:
        """Return the binding of an element, and its guard, if any."""
        binding = self.state.bind((evolve(self.dim, block_k=1),), (self.local,), (place,))
        return binding, (binding.valid[self.local],) if self.local in binding.valid else ()

    def carry(self, reduction: Reduction) -> RegisterRead:
        """Return the state before a block."""
        return self.state.register(reduction, "carry")

    def register(self, read: Read, number: int, what: str = "ahead") -> RegisterRead:
        """Return the register of an element that was loaded ahead."""
        at = tuple(map(as_index, self.state.frame.tiles))
        return RegisterRead(f"{what}{self.ahead[read]}.{number}", at, self.state.group.tensors[read.tensor].dtype)

    def write(self, held: RegisterRead, value: Value) -> RegisterWrite:
        """Return the write of a register."""
        return RegisterWrite(held.name, held.at, self.shape, value, held.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows of a thread along each dim."""
        return tuple(d.thread for d in self.state.frame.schedule.dims)
