"""Combination of lanes: shuffles, exchanges of warps and of blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import inf, prod

from attrs import evolve, frozen

from ....ir import COMBINERS, MAX_READ_WARPS, PEERS, LaneReduce, Var, phases
from ..ctext import call_text, number_text
from ..dialect import CLUSTER_BEGIN, CLUSTER_WAIT
from ..scope import KernelNames, Writer


@frozen
class LaneCombination:
    """Printer of reductions across lanes."""

    names: KernelNames
    out: Writer

    def print(self, nodes: Sequence[LaneReduce]) -> None:
        """Print independent reductions across equally many lanes of one type.

        They use shuffles within a warp where the dialect has them, else a tree in shared memory.
        """
        first, warp = nodes[0], self.names.dialect.warp
        shuffle = self.names.dialect.shuffle and self.names.kernel.threads % warp == 0 and first.dtype.size in (4, 8)
        shuffle = shuffle and (self._inside(first) > 1 or first.threads <= MAX_READ_WARPS) and not first.tree
        for node in nodes:
            sums = [other for other in nodes if other.shifted == node.name]
            with self.out.loop(Var("e", prod(node.shape))), self._rescaling(node, "[e]", sums):
                if shuffle:
                    self._shuffle(node, f"{self.names.registers[node.name]}[e]", self._inside(node))
                else:
                    self._tree(node, f"{self.names.registers[node.name]}[e]", node.threads)
        if shuffle and first.threads > self._inside(first):
            self._exchange_warps(nodes)
        if shuffle and first.blocks > 1:
            self._exchange_blocks(nodes)

    @contextmanager
    def _rescaling(self, node: LaneReduce, at: str, sums: Sequence[LaneReduce]) -> Iterator[None]:
        """Rescale sums from a thread's maximum to the combined one."""
        register, own = f"{self.names.registers[node.name]}{at}", self.names.fresh() if sums else ""
        if sums:
            self.out.line(f"const {self.names.dialect.type(node.dtype)} {own} = {register};")
        yield
        for other in sums:
            held = f"{self.names.registers[other.name]}{at}"
            self.out.line(f"{held} *= {self._ratio(node, own, register)};")

    def _ratio(self, node: LaneReduce, before: str, after: str) -> str:
        """Return the ratio of exponentials that a maximum shifts to those that the one before shifted.

        The shift is 0 as long as all elements are -inf.
        """
        dialect = self.names.dialect
        lowest, nothing = (number_text(value, node.dtype, dialect) for value in (-inf, 0.0))
        shift = f"({after} == {lowest} ? {nothing} : {after})"
        return call_text("exp", (f"({before} - {shift})",), node.dtype, dialect)

    def _inside(self, node: LaneReduce) -> int:
        """Return the lanes of a warp that share an instance and can shuffle."""
        whole = self.names.dialect.warp % node.stride == 0
        return min(node.threads, self.names.dialect.warp // node.stride) if whole else 1

    def _exchange_warps(self, nodes: Sequence[LaneReduce]) -> None:
        """Combine the values of warps, of several reductions at once where scratch has room.

        It has room for a value of each thread, and each warp stores one of an instance, or of each of its columns.
        """
        together = self._inside(nodes[0])
        if sum(prod(node.shape) for node in nodes) <= together:
            self._across_warps([(node, 0, prod(node.shape)) for node in nodes])
            return
        for node in nodes:
            sums = [other for other in nodes if other.shifted == node.name]
            alone, count = evolve(node, shifted=""), prod(node.shape)
            with ExitStack() as stack:
                for e in range(count if sums else 0):
                    stack.enter_context(self._rescaling(node, f"[{e}]", sums))
                for start in range(0, count, together):
                    self._across_warps([(alone, start, min(together, count - start))])

    def _shuffle(self, node: LaneReduce, register: str, lanes: int) -> None:
        """Combine the values of groups of lanes; all lanes of a group get the same result."""
        distance = lanes // 2 * node.stride
        while distance >= node.stride:
            # All lanes of the warp must take part, so a shuffle is no operand of a conditional expression.
            other = self.names.fresh()
            self.out.line(
                f"const {self.names.dialect.type(node.dtype)} {other} = "
                f"{self.names.dialect.shuffle.format(value=register, distance=distance)};"
            )
            self.out.line(f"{register} = {self._combine(node, register, other)};")
            distance //= 2

    def _combine(self, node: LaneReduce, left: str, right: str) -> str:
        return call_text(COMBINERS[node.combine].fn, (left, right), node.dtype, self.names.dialect)

    def _across_warps(self, parts: Sequence[tuple[LaneReduce, int, int]]) -> None:
        """Combine one value per warp and column through shared memory, in one order in every thread of a column.

        Of each reduction these are the instances from a start on, as many as a count.
        """
        stride, inside = parts[0][0].stride, self._inside(parts[0][0])
        place, loops = 0, list[tuple[LaneReduce, Var, str, str]]()
        for node, start, count in parts:
            register = f"{self.names.registers[node.name]}[e{f' + {start}' * (start > 0)}]"
            instance = f"(e + {place})" if place else "e"
            loops.append((node, Var("e", count), register, f"{instance} * {self.names.kernel.threads // inside}"))
            place += count
        scratch = self.names.lane_scratch(parts[0][0].dtype)
        first, own = f"tid % {inside} == 0", f"tid / {inside}"
        if stride > 1:
            first, own = f"tid / {stride} % {inside} == 0", f"tid / {stride * inside} * {stride} + tid % {stride}"
        for _, instances, register, at in loops:
            with self.out.loop(instances):
                self.out.line(f"if ({first}) {scratch}[{at} + {own}] = {register};")
        self.out.line(self.names.dialect.barrier)
        places = {node.name: at for node, _, _, at in loops}
        for node, instances, register, at in loops:
            with self.out.loop(instances):
                where = (scratch, at, places.get(node.shifted, ""))
                self._read_warps(node, register, where, node.threads // inside, inside)
        self.out.line(self.names.dialect.barrier)

    def _read_warps(
        self, node: LaneReduce, register: str, place: tuple[str, str, str], warps: int, inside: int
    ) -> None:
        """Read the values of warps at a place of scratch, and combine them: many of them by several lanes.

        Those that are shifted are rescaled from maxima at another place.
        """
        scratch, *starts = place
        first = f" + tid % {node.stride}" if node.stride > 1 else f" + tid / {node.threads} * {warps}"
        each, lanes = warps, 1
        if warps > MAX_READ_WARPS and not warps & (warps - 1):
            lanes = min(warps, inside)
            lane = f"tid % {lanes}" if node.stride == 1 else f"tid / {node.stride} % {lanes} * {node.stride}"
            each, first = warps // lanes, f"{first} + {lane}"
        own, before = (f"{scratch}[{start}{first}" for start in starts)
        for other in range(each):
            step = f" + {other * lanes * node.stride}]" if other else "]"
            self._add(node, register, f"{own}{step}", f"{before}{step}", other == 0)
        self._shuffle(node, register, lanes)

    def _add(self, node: LaneReduce, register: str, value: str, before: str, first: bool) -> None:
        """Combine a register with a value that another thread left, rescaled from the maximum `before`."""
        if node.shifted:
            value = f"({value} * {self._ratio(node, before, f'{self.names.registers[node.shifted]}[e]')})"
        self.out.line(f"{register} = {value if first else self._combine(node, register, value)};")

    def _exchange_blocks(self, nodes: Sequence[LaneReduce]) -> None:
        """Combine the values of a cluster's blocks: each sends its own to the shared memory of all, by an mbarrier.

        A block has several rows side by side where threads are at a `stride`.
        """
        if not self.names.in_cluster:
            self.out.line(f"{CLUSTER_WAIT}();")
            self.names.in_cluster = True
        blocks, kind = nodes[0].blocks, self.names.dialect.memory_type(nodes[0].dtype)
        side = nodes[0].stride
        row, lane = (f" + tid % {side} * {blocks}", f"tid / {side}") if side > 1 else ("", "tid")
        loops = [(node, f"(({kind}*)({PEERS} + {node.place} + e * {blocks * side}){row})") for node in nodes]
        helper = f"cuts_to_peer{nodes[0].dtype.size}"
        for node, peers in loops:
            with self.out.loop(Var("e", prod(node.shape))):
                held = f"{self.names.registers[node.name]}[e]"
                place = f"{peers} + blk % {blocks}"
                self.out.line(f"if (tid < {blocks * side}) {helper}({place}, {held}, {_mbarrier(node)}, {lane});")
        whole = side == 1 and not blocks & (blocks - 1) and blocks <= self.names.dialect.warp
        for node, peers in loops:
            self.out.line(f"cuts_mbarrier_wait({_mbarrier(node)}, 0);")
            maxima = next((there for n, there in loops if n.name == node.shifted), "")
            with self.out.loop(Var("e", prod(node.shape))):
                held = f"{self.names.registers[node.name]}[e]"
                for other in [f"[tid % {blocks}]"] if whole else [f"[{n}]" for n in range(blocks)]:
                    self._add(node, held, f"{peers}{other}", f"{maxima}{other}", other in ("[0]", f"[tid % {blocks}]"))
                self._shuffle(evolve(node, stride=1), held, blocks if whole else 1)

    def _tree(self, node: LaneReduce, register: str, lanes: int) -> None:
        """Combine values by halves, in one block the threads of a whole cluster."""
        scratch = self.names.lane_scratch(node.dtype)
        thread = "tid" if self.names.kernel.cluster == 1 else self.names.dialect.thread_index
        lanes = lanes * node.blocks
        step = 1 << (lanes - 1).bit_length() >> 1
        place, first = f"{thread} % {lanes}", f"{thread} / {lanes} * {lanes}"
        if node.stride > 1:
            place = f"{thread} / {node.stride} % {lanes}"
            first = f"{thread} / {node.stride * lanes} * {node.stride * lanes} + {thread} % {node.stride}"
        self.out.line(f"{scratch}[{thread}] = {register};")
        self.out.line(self.names.dialect.barrier)
        while step:
            combined = self._combine(node, f"{scratch}[{thread}]", f"{scratch}[{thread} + {step * node.stride}]")
            self.out.line(f"if ({place} < {min(step, lanes - step)}) {scratch}[{thread}] = {combined};")
            self.out.line(self.names.dialect.barrier)
            step //= 2
        self.out.line(f"{register} = {scratch}[{first}];")
        self.out.line(self.names.dialect.barrier)


def begin_cluster(names: KernelNames, out: Writer) -> None:
    """Initialise the mbarriers of a cluster's exchanges, one for each."""
    roots = [root for phase in phases(names.kernel.items) for root in phase.roots]
    with out.block("if (tid == 0)"):
        for node in (root for root in roots if isinstance(root, LaneReduce) and root.blocks > 1):
            out.line(f"cuts_mbarrier_init({_mbarrier(node)}, 1);")
            nbytes = node.blocks * prod(node.shape) * node.stride * node.dtype.size
            out.line(f"cuts_mbarrier_expect({_mbarrier(node)}, {nbytes});")
    out.line(f"{CLUSTER_BEGIN}();")


def _mbarrier(node: LaneReduce) -> str:
    """Return the mbarrier of an exchange, after the values of its blocks."""
    return f"{PEERS} + {node.place + node.blocks * prod(node.shape) * node.stride}"
