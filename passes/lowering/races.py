"""Race and barrier checks of a block-level kernel's threads.

Nothing runs. The items are walked in their order, loops iteration by iteration with the step as a number, so that slots
of a shared-memory pipeline are constants and every access of a phase is an interval of a buffer, over all threads.
Between two barriers an interval that one phase writes must not overlap an interval that another phase, or the next
iteration, reads or writes. An asynchronous copy is complete at the `Wait` for its group, for the waiting thread, and
after the next barrier for the others. Products that read shared memory in place are unfinished until the `ProductWait`
for their group; the writes that they read need a `ProxyFence` by the writer between the arrival and the barrier. Bulk
copies are complete at the `MbarrierWait` for their phase, for every thread that waits (`mbarriers.py`).

    fetch writes a[0..63]; compute reads a[0..63]
        ->    phase compute reads a[0..63] that phase fetch wrote since the last barrier

Intervals are bounds, so a report may be no race, but no race between phases is missed. The shares of a phase guarantee
that its own threads write different elements by one access; of several writes, elements are listed where their
intervals overlap. Elements that are read and written at one address, over the same shares, belong to one thread each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from ...ir import (
    LANES,
    MMA_INSTRUCTIONS,
    Accumulate,
    Barrier,
    BulkFetch,
    Commit,
    Guard,
    Initialise,
    Item,
    Kernel,
    LaneExchange,
    LaneReduce,
    Load,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    MmaAccumulate,
    Phase,
    ProductCommit,
    ProductWait,
    ProxyFence,
    RegisterRead,
    RegisterWrite,
    Store,
    Var,
    Wait,
    loops,
    opening_items,
    post_order,
    substitute,
    substitute_guards,
    variables,
)
from .mbarriers import Mbarriers
from .shared_accesses import (
    Extent,
    SharedAccess,
    access_bounds,
    atomic_updates,
    merge_intervals,
    shared_accesses,
    touched_elements,
)

#: Most iterations walked at each end of a long loop, twice; the stages of a pipeline, and their parities, divide twice
#: the number.
MAX_WALKED_STEPS = 24


def check_barriers(kernel: Kernel) -> tuple[str, ...]:
    """Return descriptions of missing barriers, missing waits and divergent combinations.

    Loops that may end early are walked for several ends.
    """
    found: dict[str, None] = {}
    for ends in _ends(kernel):
        walk = _Walk(kernel, steps=ends)
        first, rest = opening_items(kernel)
        walk.items(first)
        for turn in _walked_steps(kernel.turn.extent):
            walk.steps |= _turn_steps(kernel, turn, walk.steps)
            walk.items(rest)
        walk.finish()
        found |= walk.found
    return tuple(found)


def _ends(kernel: Kernel) -> Iterator[dict[Var, int]]:
    """Yield the ends of loops with early exits: before the first iteration, after it, after the second, or at the last
    one.
    """
    early = {loop.until: loop for loop in loops(kernel.items) if loop.until is not None}
    for turns in (0, 1, 2, None) if early else (None,):
        yield {
            end: loop.var.extent if turns is None else min(max(turns, loop.at_least_once), loop.var.extent)
            for end, loop in early.items()
        }


@define
class _Walk:
    """State between two items: accesses since the last barrier, copies in flight, contents of shared memory.

    `filled` are the intervals that were written, `listed` the elements of phases with several writes. `open` are copies
    of no group yet, `groups` the unfinished groups, oldest first. `steps` are the iteration numbers of the enclosing
    loops. `products` are the reads of unfinished groups of products, the last of them still open, `adding` and `taking`
    the registers that each adds to and takes factors from; `unfenced` are writes that products may not see, `hidden`
    those without a fence before the barrier.
    """

    kernel: Kernel
    reads: list[Extent] = field(factory=list)
    writes: list[Extent] = field(factory=list)
    combined: list[Extent] = field(factory=list)
    open: list[Extent] = field(factory=list)
    groups: list[list[Extent]] = field(factory=list)
    filled: dict[str, list[tuple[int, int]]] = field(factory=dict)
    listed: dict[str, set[int]] = field(factory=dict)
    steps: dict[Var, int] = field(factory=dict)
    products: list[list[Extent]] = field(factory=lambda: [[]])
    adding: list[set[str]] = field(factory=lambda: [set()])
    taking: list[set[str]] = field(factory=lambda: [set()])
    unfenced: list[Extent] = field(factory=list)
    hidden: list[Extent] = field(factory=list)
    mbarriers: Mbarriers[Extent] = field(factory=Mbarriers)
    production: Iterator[tuple[Item, dict[Var, int]]] = field(init=False)
    upcoming: tuple[Item, dict[Var, int]] | None = field(init=False)
    found: dict[str, None] = field(factory=dict)
    #: Accesses that phases load, store and combine.
    known: dict[Phase, tuple[list[SharedAccess], list[SharedAccess], list[SharedAccess]]] = field(factory=dict)

    @production.default
    def _production(self) -> Iterator[tuple[Item, dict[Var, int]]]:
        items = [item for producer in self.kernel.producer for item in producer.body]
        steps = dict(self.steps)
        for turn in _walked_steps(self.kernel.turn.extent):
            yield from _steps_of(items, steps | _turn_steps(self.kernel, turn, steps))

    @upcoming.default
    def _upcoming(self) -> tuple[Item, dict[Var, int]] | None:
        return next(self.production, None)

    most_pending: int = field(init=False)

    @most_pending.default
    def _most_pending(self) -> int:
        bodies = (self.kernel.items, *(loop.body for loop in loops(self.kernel.items)))
        return max((item.pending for body in bodies for item in body if isinstance(item, Wait)), default=0)

    @property
    def scratch(self) -> int:
        """Bytes of the buffer in which reduction threads exchange values."""
        return sum(b.elements * b.dtype.size for b in self.kernel.shared if b.name == "lanes")

    def items(self, items: Iterable[Item]) -> None:
        """Walk items in order."""
        for item in items:
            if isinstance(item, Loop):
                before = -1
                for step in _walked_steps(item.var.extent if item.until is None else self.steps[item.until]):
                    # Groups of the iterations in between are complete; no wait leaves more of them pending.
                    self.groups += [[]] * min((step - before - 1) * _commits(item.body), self.most_pending)
                    self.steps[item.var] = before = step
                    self.items(item.body)
                self.steps.pop(item.var, None)
            elif isinstance(item, Phase):
                self._phase(item)
            elif isinstance(item, Commit):
                self.groups.append(self.open)
                self.open = []
            elif isinstance(item, Wait):
                while len(self.groups) > item.pending:
                    self._arrive(self.groups.pop(0))
            elif isinstance(item, ProxyFence):
                self.unfenced.clear()
            elif isinstance(item, ProductCommit):
                self.products.append([])
                self.adding.append(set())
                self.taking.append(set())
            elif isinstance(item, ProductWait):
                self._finish_products(item)
            elif isinstance(item, LaneExchange):
                if item.name in set().union(*self.adding):
                    self._report(f"lanes exchange {item.name}, to which products may still be adding")
            elif isinstance(item, MbarrierInit):
                self.mbarriers.initialise(item)
            elif isinstance(item, BulkFetch):
                self._bulk_fetch(item, self.steps)
            elif isinstance(item, MbarrierWait):
                self._produce()
                self._wait_for_bulk(item)
            elif isinstance(item, MbarrierArrive):
                self._release(item)
            if isinstance(item, Barrier) or self.kernel.threads == 1:
                self._synchronise()

    def _arrive(self, spans: Iterable[Extent]) -> None:
        """Record writes of the thread itself, complete but for other threads."""
        for span in spans:
            self.writes.append(span)
            self.unfenced.append(span)
            self.hidden = [
                h for h in self.hidden if not (h.overlaps(span) and span.first <= h.first and h.last <= span.last)
            ]

    def _finish_products(self, wait: ProductWait) -> None:
        """Finish the older groups of products: other warps may still read until the next barrier."""
        while len(self.products) > wait.pending + 1:
            self.reads += self.products.pop(0)
            self.adding.pop(0)
            self.taking.pop(0)

    def _produce(self) -> None:
        """Run the producer until a wait of it does not end."""
        while self.upcoming is not None:
            item, steps = self.upcoming
            if isinstance(item, MbarrierWait):
                if not self.mbarriers.may_reuse(item, steps):
                    return
                for fault in self.mbarriers.reuse(item, steps):
                    self._report(fault)
            elif isinstance(item, BulkFetch):
                self._bulk_fetch(item, steps)
            self.upcoming = next(self.production, None)

    def _release(self, item: MbarrierArrive) -> None:
        """Release a stage: each warp has ended its reads of it."""
        if any(g.index.is_const for g in substitute_guards(item.when, self.steps)):
            return
        stage, faults = self.mbarriers.arrive(item, self.steps, self.kernel.threads // LANES)
        for fault in faults:
            self._report(fault)
        for read in (r for group in self.products for r in group):
            if any(read.overlaps(span) for span in stage):
                self._report(f"{read.text} is released while products of phase {read.phase} may still be reading it")
        self.reads = [read for read in self.reads if not any(read.overlaps(span) for span in stage)]

    def _bulk_fetch(self, fetch: BulkFetch, steps: Mapping[Var, int]) -> None:
        """Begin the copies of one thread, of whole boxes."""
        if any(g.index.is_const for g in substitute_guards(fetch.when, steps)):
            return
        maps, sizes = {m.name: m for m in self.kernel.maps}, {b.name: b.elements for b in self.kernel.shared}
        spans = []
        for copy in fetch.copies:
            first = substitute(copy.address, steps).const
            span = Extent(fetch.barriers, copy.buffer, first, first + maps[copy.map].elements - 1)
            if first < 0 or span.last >= sizes[copy.buffer]:
                self._report(f"a bulk copy touches {span.text}, which has {sizes[copy.buffer]} elements")
            self._write(span)
            spans.append(span)
        brought = sum(maps[copy.map].nbytes for copy in fetch.copies)
        for fault in self.mbarriers.fetch(fetch, steps, spans, brought):
            self._report(fault)

    def _wait_for_bulk(self, wait: MbarrierWait) -> None:
        """Complete the copies of a phase: every thread waits for them itself."""
        spans, faults = self.mbarriers.wait(wait, self.steps)
        for fault in faults:
            self._report(fault)
        for span in spans:
            self._fill(span)

    def _fill(self, span: Extent) -> None:
        self.filled[span.buffer] = merge_intervals([*self.filled.get(span.buffer, ()), (span.first, span.last)])

    def finish(self) -> None:
        """Report copies and products without a wait."""
        self._produce()
        if self.upcoming is not None:
            self._report("the producer waits for a release of its stage that never comes")
        for name in sorted(set().union(*self.adding)):
            self._report(f"products add to {name}, and the kernel ends without a wait for them")
        for span in self._copying():
            self._report(f"phase {span.phase} copies {span.text}, and the kernel ends without a wait for it")

    def _synchronise(self) -> None:
        """Make all writes visible to all threads."""
        self.reads.clear()
        self.combined.clear()
        self.hidden += self.unfenced
        self.unfenced.clear()
        self.mbarriers.synchronise()
        for span in self.writes:
            self._fill(span)
        self.writes.clear()

    def _copying(self) -> list[Extent]:
        return [*self.open, *(span for group in self.groups for span in group), *self.mbarriers.copying]

    def _report(self, reason: str) -> None:
        self.found[reason] = None

    def _phase(self, phase: Phase) -> None:
        when = substitute_guards(phase.when, self.steps)
        if any(g.index.is_const for g in when):
            return  # a guard that holds for every thread at this step is dropped, so this one is false
        self._collective(phase, when)
        if phase not in self.known:
            self.known[phase] = shared_accesses(phase, Load), shared_accesses(phase, Store), atomic_updates(phase)
        reads, writes, combined = self.known[phase]
        products = [r for r in phase.roots if isinstance(r, MmaAccumulate) and MMA_INSTRUCTIONS[r.mma].reads_shared]
        in_place = {r.name for r in products}
        adding, taking = (set[str]().union(*groups) for groups in (self.adding, self.taking))
        for name in sorted((adding & _registers_used(phase)) - in_place if adding else ()):
            self._report(f"phase {phase.name} uses {name}, to which products may still be adding")
        for name in sorted(taking & _registers_used(phase, _WRITES) if taking else ()):
            self._report(f"phase {phase.name} writes {name}, which products may still be reading")
        for access, span in self._spans(phase, reads):
            self._read(access, span, bool(in_place))
        self.adding[-1] |= in_place
        self.taking[-1] |= {r.a.name for r in products if isinstance(r.a, RegisterRead)}
        written = list(self._spans(phase, writes))
        for _, span in written:
            self._write(span)
        self._check_distinct(written)
        if phase.asynchronous:
            self.open += [span for _, span in written]
        else:
            self._arrive(span for _, span in written)
        for access, span in self._spans(phase, combined):
            self._combine(access, span)

    def _check_distinct(self, written: Sequence[tuple[SharedAccess, Extent]]) -> None:
        """Check that several writes of one phase touch different elements, and list these."""
        seen: dict[str, set[int]] = {}
        for number, (access, span) in enumerate(written):
            others = [other for _, other in (*written[:number], *written[number + 1 :]) if other.buffer == span.buffer]
            if not others:
                continue
            elements, before = touched_elements(access, self.steps), seen.setdefault(span.buffer, set())
            overlaps = any(span.overlaps(other) for other in others)
            if overlaps and (elements is None or not before.isdisjoint(elements)):
                self._report(f"phase {span.phase} writes {span.text} more than once")
            before |= elements or set()
        for buffer, places in seen.items():
            self.listed.setdefault(buffer, set()).update(places)

    def _collective(self, phase: Phase, when: Sequence[Guard]) -> None:
        """Check that all threads take part in a combination, and that its scratch covers idle threads of the last
        group.
        """
        for root in phase.roots:
            if not isinstance(root, LaneReduce):
                continue
            if when:
                self._report(
                    f"phase {phase.name} combines lanes of {root.name} "
                    f"under the condition {' and '.join(g.text for g in when)}"
                )
            places = -(-self.kernel.threads // root.threads) * root.threads
            if places * root.dtype.size > self.scratch:
                room = f"{places} places of {root.dtype.size} bytes, scratch has {self.scratch} bytes"
                self._report(f"phase {phase.name} combines lanes of {root.name} in {room}")

    def _read(self, access: SharedAccess, span: Extent, in_place: bool) -> None:
        written = (*self.writes, *self.combined)
        own = span.own is not None and any(w.own == span.own for w in written)  # written by the reader
        others = [w for w in written if w.own is None or w.own != span.own]
        rivals = [f"phase {w.phase} wrote since the last barrier" for w in others if span.overlaps(w)]
        rivals += [f"phase {c.phase} may still be copying" for c in self._copying() if span.overlaps(c)]
        if in_place:
            unseen = (w for w in (*self.unfenced, *self.hidden) if span.overlaps(w))
            rivals += [f"phase {w.phase} wrote without a fence for products" for w in unseen]
        for rival in rivals:
            self._report(f"phase {span.phase} reads {span.text} that {rival}")
        if not rivals and not own:
            self._check_initialised(access, span)
        (self.products[-1] if in_place else self.reads).append(span)

    def _check_initialised(self, access: SharedAccess, span: Extent) -> None:
        """Check that all elements of a read are initialised: those between its bounds, or the ones that it touches."""
        if any(low <= span.first and span.last <= high for low, high in self.filled.get(span.buffer, ())):
            return
        if not (touched_elements(access, self.steps) or {-1}) <= self.listed.get(span.buffer, set()):
            self._report(f"phase {span.phase} reads {span.text} before all of it was written")

    def _write(self, span: Extent) -> None:
        for rival in self._conflicts(span, (*self.writes, *self.combined)):
            self._report(f"phase {span.phase} overwrites {span.text} that {rival}")

    def _combine(self, access: SharedAccess, span: Extent) -> None:
        """Check atomic updates: they commute with each other, and conflict with everything else."""
        rivals = [*self._conflicts(span, self.writes)]
        for rival in rivals:
            self._report(f"phase {span.phase} combines values in {span.text} that {rival}")
        if not rivals:
            self._check_initialised(access, span)
        self.combined.append(span)

    def _conflicts(self, span: Extent, written: Iterable[Extent]) -> Iterator[str]:
        """Yield the accesses that conflict with changing some elements."""
        others = (r for r in self.reads if r.own is None or r.own != span.own)
        yield from (f"phase {r.phase} read since the last barrier" for r in others if span.overlaps(r))
        products = (r for group in self.products for r in group)
        yield from (f"products of phase {r.phase} may still be reading" for r in products if span.overlaps(r))
        yield from (f"phase {w.phase} wrote since the last barrier" for w in written if span.overlaps(w))
        yield from (f"phase {c.phase} may still be copying" for c in self._copying() if span.overlaps(c))

    def _spans(self, phase: Phase, accesses: Iterable[SharedAccess]) -> Iterator[tuple[SharedAccess, Extent]]:
        """Yield the accesses of this step with their intervals.

        Accesses that no thread makes are left out, and those out of range reported.
        """
        sizes = {b.name: b.elements for b in self.kernel.shared}
        for access in accesses:
            bounds = access_bounds(access, self.steps, sizes.get(access.buffer, 0))
            if bounds is None:
                continue
            address = substitute(access.address, self.steps)
            shares = frozenset(s for s in phase.shares if s.var in variables(address))
            shared = bool(shares) and {s.var for s in shares} == variables(address)
            span = Extent(phase.name, access.buffer, *bounds, (address, shares) if shared else None)
            if span.first < 0 or span.last >= sizes.get(access.buffer, 0):
                self._report(
                    f"phase {phase.name} touches {span.text}, which has {sizes.get(access.buffer, 0)} elements"
                )
            yield access, span


#: Nodes that change registers.
_WRITES = (Accumulate, MmaAccumulate, RegisterWrite, Initialise, LaneReduce)


def _registers_used(phase: Phase, nodes: tuple[type, ...] = (RegisterRead, *_WRITES)) -> set[str]:
    """Return the names of the registers that some nodes of a phase read or write."""
    named = (n for n in post_order(phase.roots) if isinstance(n, (RegisterRead, *_WRITES)))
    return {n.name for n in named if isinstance(n, nodes)}


def _turn_steps(kernel: Kernel, turn: int, steps: Mapping[Var, int]) -> dict[Var, int]:
    """Return the number of a turn, and the K blocks of the turns before where data end them."""
    return {kernel.turn: turn} | ({kernel.done[0]: turn * steps[kernel.done[1]]} if kernel.done else {})


def _steps_of(items: Iterable[Item], steps: dict[Var, int]) -> Iterator[tuple[Item, dict[Var, int]]]:
    """Yield items in order with the iteration numbers of the loops around them."""
    for item in items:
        if isinstance(item, Loop):
            for step in _walked_steps(item.var.extent if item.until is None else steps[item.until]):
                yield from _steps_of(item.body, {**steps, item.var: step})
        else:
            yield item, steps


def _commits(items: Iterable[Item]) -> int:
    """Return how many groups items commit."""
    return sum(i.var.extent * _commits(i.body) if isinstance(i, Loop) else int(isinstance(i, Commit)) for i in items)


def _walked_steps(extent: int) -> Iterator[int]:
    """Yield the iterations of a loop to walk: all of them, or those at both ends of a long loop. A pipeline repeats
    itself in between.
    """
    ends = 2 * MAX_WALKED_STEPS
    middle = range(ends, (extent - ends) // ends * ends)
    yield from (step for step in range(extent) if step not in middle)
