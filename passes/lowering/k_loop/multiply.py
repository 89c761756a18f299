"""Matrix-instruction phases of a K block, as a whole or in steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import evolve, frozen

from ....ir import (
    MATH_MODES,
    MMA_INSTRUCTIONS,
    Accumulate,
    Convert,
    DType,
    Expr,
    Index,
    Item,
    Literal,
    Load,
    MmaAccumulate,
    Op,
    PassError,
    Phase,
    ProductCommit,
    ProductFence,
    ProductWait,
    Reduction,
    ReductionSchedule,
    RegisterRead,
    RegisterWrite,
    Root,
    Test,
    Value,
    Var,
    as_index,
    call,
    clamp,
    substitute_node,
)
from ...geometry import (
    FRAGMENT_SETS,
    ROW_LANES,
    chained_vector,
    matrix_tile,
    mma_operands,
    promotion_depth,
    reads_shared_matrices,
)
from ..index_values import Context, value_of
from ..layout import AxisBinding, MmaLoop, held_register, held_rows_loop, mma_loop, products
from ..segment_state import SegmentState
from ..substitute_phase import substitute_phase
from .block_scales import held_scales, multiply_scales, scale_values
from .warp_split_k import warp_sum_register


@frozen
class Multiplication:
    """The products of one K block of a reduction.

    `depth` is the block's own variable of the reduced dim, `block_k` numbers the K blocks, `a` and `b` are the factors
    over the block's variables, as registers hold them; `pairs` are the operands of products in place, whose rows
    registers hold where they are `held`, and whose second matrices lie `turned` in shared memory. The sums of a K block
    are multiplied by `scales`.
    """

    state: SegmentState
    reduction: Reduction
    schedule: ReductionSchedule
    depth: Var
    block_k: Var
    a: Value
    b: Value
    prefix: str
    pairs: tuple[tuple[Value, Value], ...] = ()
    held: bool = False
    turned: bool = False
    scales: tuple[Value, ...] = ()

    @property
    def steps(self) -> int:
        """Steps of a warp along the depth of a K block."""
        return self.depth.extent // (
            MMA_INSTRUCTIONS[self.schedule.mma].k * self.state.frame.schedule.reduction_threads
        )

    @property
    def at(self) -> tuple[Index, ...]:
        """The block's element that a product is added to."""
        return tuple(as_index(u) for u in self.state.frame.tiles)

    @property
    def accumulator(self) -> str:
        """Name of the accumulator registers.

        They hold the warp's sums or, where partial sums are promoted, those of one K block.
        """
        promoted = promotion_depth(self.reduction, self.schedule.mma)
        return f"{self.reduction.name}.part" if promoted else self.sums

    @property
    def sums(self) -> str:
        """Name of the registers of a warp's sums over all K blocks."""
        return warp_sum_register(self.reduction, self.state.frame.schedule)

    def all_steps(self) -> Phase:
        """Return the phase that multiplies a whole K block."""
        loop = self._loop(None)
        return self._phase(
            "", [*self._initialise_partial(), *self._products(self.a, self.b, loop), *self._promote_partial()], loop
        )

    @property
    def is_promoted(self) -> bool:
        """True where the sums of a K block are added to others."""
        return self.accumulator != self.sums

    def issue_products(self, beside: Sequence[Item] = ()) -> list[Item]:
        """Return the items that issue a K block's products in place.

        Rows are loaded into the registers of a step when its products of the K block before have ended. As a warp waits
        for the first ones of several steps with rows in registers, items `beside` them come early: after products of
        this or the last K block.
        """
        sums, steps = (self.accumulator,) if self.is_promoted else (), range(self.steps)
        if self.held:
            first, *others = (self._issue_held_step(number) for number in steps)
            rest = [item for step in others for item in step]
            return [*first, *beside, *rest, *self._next_scales()] if sums else [*beside, *first, *rest]
        if sums:
            issued = (self.step_in_place(n) for n in steps)
            return [ProductFence(sums), *issued, ProductCommit(), *beside, *self._next_scales()]
        loop = self._loop(None)
        products: list[Root] = [root for pair in self.pairs for root in self._products(*pair, loop)]
        fence = ProductFence((self.accumulator,) if self._writes_sums else ())
        return [fence, self._phase("", products, loop), ProductCommit(), *beside]

    @property
    def _writes_sums(self) -> bool:
        """True where a compiler may write the sums of a K block just before its products.

        Of a single K block it sees no loop, and would set the sums to 0 after a fence without them.
        """
        return self.is_promoted or self.block_k.extent == 1

    def _next_scales(self) -> list[Item]:
        """Return the phases that multiply a K block's scales, and load those of the next one."""
        if not self.scales:
            return []
        held = held_scales(self.state, self.reduction, self.scales)
        shape, last = tuple(dim.thread for dim in self.state.frame.schedule.dims), self.block_k.extent - 1
        scale = multiply_scales([RegisterRead(write.name, write.at, write.dtype) for write in held], self._dtype)
        write = RegisterWrite(f"{self.sums}.scale", self.at, shape, scale, self._dtype)
        following = [self._load_scales(clamp(as_index(self.block_k) + 1, 0, last))] if last else []
        return [self._phase("scale", [write], self._loop(None)), *following]

    def _load_scales(self, at: Index) -> Phase:
        """Return the phase that loads the scales of a K block; missing rows and columns have those of the last one."""
        phase = self._phase("scales", [*held_scales(self.state, self.reduction, self.scales)], self._loop(None))
        phase = evolve(phase, shares=tuple(evolve(s, valid=()) for s in phase.shares))
        return substitute_phase(phase, {self.block_k: at})

    def initialise_partial(self) -> list[Item]:
        """Return the phases that declare the sums of a K block.

        They load the scales of the first one.
        """
        zero = self._initialise_partial()
        first = [self._load_scales(Index())] if self.scales else []
        return [self._phase("zero", zero, self._loop(None)), *first] if zero else []

    def _issue_held_step(self, number: int) -> list[Item]:
        """Return the items that load a step's rows and issue its products."""
        rows, values = self.held_rows(number), [*self._held_rows(number)]
        ended = [] if self.is_promoted else [ProductWait(self.steps - 1, rows)]
        fence = ProductFence((self.accumulator, *rows) if self._writes_sums and number == 0 else rows)
        step = self.step_in_place(number, self.is_promoted)
        return [*ended, self.load_held_rows(number, values), fence, step, ProductCommit()]

    def end_block(self) -> tuple[ProductWait, tuple[Phase, ...]]:
        """Return the wait and promotion at the end of a K block."""
        if not self.is_promoted:
            return ProductWait(self.steps if self.held else 1), ()
        return ProductWait(0, (self.accumulator,)), (self._phase("sum", self._promote_partial(), self._loop(None)),)

    def end_products(self) -> list[Item]:
        """Return the wait for the products of the last K block."""
        return [] if self.is_promoted else [ProductWait(0, (self.accumulator,))]

    def step_in_place(self, number: int, begins: bool = True) -> Phase:
        """Return the phase that multiplies a step in place.

        Its rows are staged, or registers hold them. The first step `begins` the sum.
        """
        loop, held = self._loop(number), self._held_rows(number) if self.held else {}
        products = [root for a, b in self.pairs for root in self._products(held.get(a, a), b, loop)]
        first: list[Root] = [
            evolve(root, begins=begins and number == n == 0, turned=self.turned) for n, root in enumerate(products)
        ]
        return self._phase(f"step{number}", first, loop)

    def step(self, number: int) -> Phase:
        """Return the phase that multiplies the fragments of one step."""
        loop = self._loop(number)
        a, b = (self._fragment_read(operand, number, value) for operand, value in (("a", self.a), ("b", self.b)))
        first, last = number == 0, number == self.steps - 1
        before, closing = self._initialise_partial() if first else [], self._promote_partial() if last else []
        return self._phase(f"step{number}", [*before, *self._products(a, b, loop), *closing], loop)

    def load_fragments(self, number: int, chunk: Index) -> Phase:
        """Return the phase that loads a step's fragments into registers."""
        loop = self._loop(number)
        roots: list[Root] = []
        for side, (operand, value) in enumerate((("a", self.a), ("b", self.b))):
            kept = self._fragment_read(operand, number, value)
            moved = substitute_node(value, {self.block_k: chunk}, {})
            axes = loop.axes[side], loop.axes[side + 2]
            roots.append(
                RegisterWrite(kept.name, kept.at, loop.shapes[side], moved, kept.dtype, operand, axes, self._lane)
            )
        return self._phase(f"keep{number}", roots, loop)

    def _fragment_read(self, operand: str, number: int, value: Value) -> RegisterRead:
        frame = self.state.frame
        side = frame.tiles[self.schedule.rows if operand == "a" else self.schedule.columns]
        name = f"{self.reduction.name}.{operand}{number % FRAGMENT_SETS}"
        return RegisterRead(name, (as_index(side), as_index(self.depth)), value.dtype)

    def load_rows(self, number: int) -> Phase:
        """Return the phase that loads the rows' fragments of a step."""
        loop, kept = self._loop(number), self._kept_rows(number)
        write = RegisterWrite(
            kept.name, kept.at, loop.shapes[0], self.a, kept.dtype, "a", (loop.axes[0], loop.axes[2]), self._lane
        )
        return self._phase(f"rows{number}", [write], loop)

    def step_of_rows(self, number: int) -> Phase:
        """Return the phase that multiplies the kept rows of a step."""
        loop = self._loop(number)
        return self._phase(f"step{number}", [*self._products(self._kept_rows(number), self.b, loop)], loop)

    def with_held_rows(self, register: str) -> Phase:
        """Return the phase that multiplies rows that another instruction computed.

        A lane holds the elements of the fragment as it holds those of C.
        """
        loop, dim = self._loop(None), self.state.frame.schedule.dims[self.schedule.rows]
        row, value = self.state.frame.tiles[self.schedule.rows], self.results(register)
        spread = {row: (dim.threads, dim.vector), self.depth: (ROW_LANES, chained_vector(self.schedule.mma))}
        held = (evolve(s, register=held_register(s.value, *spread[s.var])) for s in loop.shares if s.operand == "a")
        loop = evolve(loop, shares=(*held, *(s for s in loop.shares if s.operand != "a")))
        return self._phase("", [*self._products(value, self.b, loop)], loop)

    def results(self, register: str) -> Value:
        """Return the rows that another instruction left in a register."""
        place = as_index(self.state.frame.tiles[self.schedule.rows]), as_index(self.depth)
        return Convert(RegisterRead(register, place, DType.F32), MMA_INSTRUCTIONS[self.schedule.mma].held)

    def load_held_rows(self, number: int, values: Sequence[Value]) -> Phase:
        """Return the phase that fills the rows' fragments of a step.

        Their values are staged, or results of another instruction, which a lane holds as it holds the elements of the
        fragment.
        """
        frame, dim = self.state.frame, self.state.frame.schedule.dims[self.schedule.rows]
        assert frame.warp is not None, "atoms need warps"
        loop = held_rows_loop(
            self.schedule, frame.schedule.dims, frame.tiles, self.depth, frame.warp, self.prefix, number
        )
        at = tuple(s.register for s in loop.shares)
        writes: list[Root] = [
            RegisterWrite(kept.name, at, loop.shapes[0], value, kept.dtype, "a", loop.axes, self._lane)
            for kept, value in zip(self._held_rows(number).values(), values, strict=True)
        ]
        deep = ROW_LANES, chained_vector(self.schedule.mma)
        spread = {frame.tiles[self.schedule.rows]: (dim.threads, dim.vector), self.depth: deep}
        shares = tuple(evolve(s, register=held_register(s.value, *spread[s.var])) for s in loop.shares)
        return self._phase(f"pack{number}", writes, evolve(loop, shares=shares))

    def held_rows(self, number: int) -> tuple[str, ...]:
        """Names of the registers of the rows' fragments of a step."""
        return tuple(kept.name for kept in self._held_rows(number).values())

    def _held_rows(self, number: int) -> dict[Value, RegisterRead]:
        """Return the registers of a step's rows by their values."""
        kept = evolve(self._kept_rows(number), dtype=MMA_INSTRUCTIONS[self.schedule.mma].held)
        return {
            a: evolve(kept, name=kept.name + "p" * n) for n, a in enumerate(dict.fromkeys(a for a, _ in self.pairs))
        }

    def _kept_rows(self, number: int) -> RegisterRead:
        kept = self._fragment_read("a", number, self.a)
        return evolve(kept, name=f"{self.reduction.name}.rows{number}")

    @property
    def _lane(self) -> Var:
        assert self.state.frame.warp is not None, "atoms need warps"
        return self.state.frame.warp.lane

    def _loop(self, number: int | None) -> MmaLoop:
        frame = self.state.frame
        assert frame.warp is not None, "atoms need warps"
        return mma_loop(self.schedule, frame.schedule.dims, frame.tiles, self.depth, frame.warp, self.prefix, number)

    def _products(self, a: Value, b: Value, loop: MmaLoop) -> list[MmaAccumulate]:
        return products(self.reduction, self.schedule, self.accumulator, self.at, (a, b), self.depth, loop, self._lane)

    def _initialise_partial(self) -> list[Root]:
        if self.accumulator == self.sums:
            return []
        return [evolve(self.state.initialise(self.reduction), name=self.accumulator)]

    def _promote_partial(self) -> list[Root]:
        if self.accumulator == self.sums:
            return []
        dtype = self._dtype
        value: Value = RegisterRead(self.accumulator, self.at, dtype)
        if self.scales:  # neighbours share the product of scales, so that a sum takes one multiply-add
            held = RegisterRead(f"{self.sums}.scale", self.at, dtype) if self.pairs else None
            value = Op("mul", (value, held or multiply_scales(self.scales, dtype)), dtype)
        return [Accumulate(self.sums, self.at, "sum", value, (), dtype)]

    @property
    def _dtype(self) -> DType:
        return self.state.group.tensors[self.reduction.name].dtype

    def _phase(self, suffix: str, roots: list[Root], loop: MmaLoop) -> Phase:
        frame = self.state.frame
        shares = (*self.state.shares.values(), *loop.shares)
        unrolled = tuple(v for v in loop.unrolled if v.extent > 1) + frame.unrolled
        return Phase("compute", f"{frame.prefix}r{self.prefix[-1]}{suffix}", tuple(roots), unrolled, shares, frame.when)


def multiplication(
    state: SegmentState,
    reduction: Reduction,
    schedule: ReductionSchedule,
    binding: AxisBinding,
    depth: Var,
    block_k: Var,
    staged: Mapping[Expr, Value],
    covered: Mapping[Expr, frozenset[Var]],
    prefix: str,
) -> Multiplication:
    """Return the matrix-instruction products of each K block.

    `block_k` numbers the K blocks; `staged` are the operands that are read from shared memory, `covered` the dims of
    which missing elements are 0 there.

    Raises `PassError` where the reduction is no sum of products of the schedule's rows and columns.
    """
    frame = state.frame
    dims = frame.schedule.dims
    parts = mma_operands(reduction, dims[schedule.rows].axes, dims[schedule.columns].axes)
    if parts is None or frame.warp is None or frame.when:
        raise PassError(f"reduction {reduction.name}: no two factors of a sum are what atom {schedule.mma} multiplies")
    context = state.context(binding, staged)
    scales = scale_values(state, reduction, binding, staged, depth)
    if reads_shared_matrices(schedule.mma):
        own = [r.name for r in frame.segment.reductions]
        alone = len(state.group.segments) == 1
        tiles = (matrix_tile(reduction, schedule, dims, choice, own, alone) for choice in schedule.staging)
        holds = parts[0] in state.held or any(tile is not None and tile.held for tile in tiles)
        pairs = _pairs_in_place(reduction, schedule, parts, context, holds)
        made = Multiplication(state, reduction, schedule, depth, block_k, *pairs[0], prefix, pairs, holds)
        return evolve(made, scales=scales)
    a, b = (_present(value_of(part, context), part, depth, binding, covered) for part in parts)
    kinds = MMA_INSTRUCTIONS[schedule.mma].operand_dtypes
    a, b = (v if v.dtype is held else Convert(v, held) for v, held in zip((a, b), kinds, strict=True))
    mode = MATH_MODES.get(reduction.math)
    if mode is not None and len(mode.parts) == 1:
        # Registers keep the only part of a number; of several parts they would keep more than the number itself takes.
        a, b = (Op(mode.parts[0], (v,), DType.F32) for v in (a, b))
    return Multiplication(state, reduction, schedule, depth, block_k, a, b, prefix, scales=scales)


def _pairs_in_place(
    reduction: Reduction, schedule: ReductionSchedule, parts: tuple[Expr, Expr], context: Context, held: bool
) -> tuple[tuple[Value, Value], ...]:
    """Return the staged matrices that are multiplied, in order: the factors, or their parts in a math mode.

    Parts of rows that registers hold (`held`) are computed there. Raises `PassError` where another one is not staged.
    """
    mode = MATH_MODES.get(reduction.math)
    exprs = [[call(fn, part) for fn in mode.parts] if mode is not None else [part] for part in parts]
    a, b = ([value_of(expr, context) for expr in each] for each in exprs)
    if not all(isinstance(v, Load) and v.space == "shared" for v in (*(() if held else a), *b)):
        raise PassError(f"reduction {reduction.name}: {schedule.mma} multiplies staged operands as they are")
    return tuple((a[i], b[j]) for i, j in (mode.products if mode is not None else ((0, 0),)))


def _present(
    value: Value, part: Expr, depth: Var, binding: AxisBinding, covered: Mapping[Expr, frozenset[Var]]
) -> Value:
    """Return an operand that is 0 beyond the ragged end of the depth, where memory may hold NaN."""
    if depth not in binding.valid or (part in covered and depth in covered[part]):
        return value
    zero = Literal(0.0 if value.dtype.is_float else 0, value.dtype)
    return Op("select", (Test((binding.valid[depth],)), value, zero), value.dtype)
