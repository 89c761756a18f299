"""Rows of an online softmax: running maximum, sums and weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from attrs import evolve, frozen

from ....ir import (
    COMBINERS,
    Accumulate,
    Convert,
    DType,
    Expr,
    Guard,
    Index,
    Item,
    Literal,
    Load,
    Op,
    Output,
    Phase,
    Reduction,
    RegisterRead,
    RegisterWrite,
    Root,
    Store,
    Test,
    Value,
    Var,
    as_index,
    dtype_of,
    linearise,
    reads,
    row_major,
    substitute,
    walk,
)
from ...geometry import RegisterChain, axis_places, drop_conversions, is_row_maximum, shifted_score, split_divisor
from ..index_values import Context, value_of
from ..layout import SCALES, AxisBinding, BlockLayout
from ..outputs import shared_store
from ..segment_state import SegmentState, row_share
from .chained_contraction import instance_phase
from .score_scale import ScaledScores


def weights_register(chain: RegisterChain) -> str:
    """Return the name of the registers of a chain's weights."""
    return f"{chain.weights}.held"


@frozen
class StreamedRows:
    """The rows' segment of an online softmax.

    Besides its reductions, each row has registers for the previous maximum, the shift of a part, the scale of the
    running sums, and the part's own reduction. Weights go to shared memory, or stay in the registers of a `chain`,
    undivided. `ended` scores are -inf beyond the end of a row.
    """

    layout: BlockLayout
    state: SegmentState
    chain: RegisterChain | None = None
    scores: ScaledScores | None = None
    ended: bool = False

    def items(self) -> list[Item]:
        """Return the items that process the rows of a part."""
        return [*self.maxima(), *self.weights()]

    def maxima(self) -> list[Item]:
        """Return the items of a part's maxima, which scale row sums."""
        greatest, *others = self.state.frame.segment.reductions
        dtype, context = self._dtype(greatest), self.state.context(self._binding, {})
        most, before, shift, scale = (self.state.register(greatest, what) for what in ("", "before", "shift", "scale"))
        scores = value_of(greatest.body, context)
        if self.scores is not None and self.is_scaled:
            scores = self.scores.held if self.scores.held.dtype is dtype else Convert(self.scores.held, dtype)
        nothing = Op("eq", (most, Literal(-inf, dtype)), DType.BOOL)
        finite = Op("select", (nothing, Literal(0.0, dtype), most), dtype)
        exp = Op("exp", (Op("sub", (before, shift), dtype),), dtype)
        ratio = exp if self.scores is None else self.scores.ratio(before, shift)
        return [
            self._phase("before", self.state.assign(greatest, "before", most)),
            self._row_phase("compute", "greatest", self._reduce_part(greatest, scores)),
            self._phase("most", [self._add(greatest, self.state.register(greatest, "part"))]),
            self._phase("shift", self.state.assign(greatest, "shift", finite)),
            self._phase("scale", self.state.assign(greatest, "scale", ratio)),
            *(self._phase(f"again{r.name}", [evolve(self._add(r, scale), combine="prod")]) for r in others),
        ]

    def weights(self) -> list[Item]:
        """Return the items of a part's weights, which add its sums."""
        state, (greatest, *others) = self.state, self.state.frame.segment.reductions
        context, shift = state.context(self._binding, {}), self.state.register(greatest, "shift")
        wide = [o for o in state.frame.segment.outputs if o.extra]
        weights = {o: split_divisor(o.body)[0] if self.chain else o.body for o in wide}
        bodies = (*(r.body for r in others), *weights.values())
        shifted = evolve(context, staged={**context.staged, **self._shift_values(bodies, greatest, context, shift)})
        roots = [r for other in others for r in self._reduce_part(other, value_of(other.body, shifted))]
        roots += [self._weight(o, self._binding, self.local, value_of(body, shifted)) for o, body in weights.items()]
        found: list[Item] = [self._row_phase("exit", "rows", roots)]
        if self.chain is None:
            lane, scale = Guard(as_index(state.frame.lane), 0, 1), self.state.register(greatest, "scale")
            guards = () if lane.always else (lane,)
            store = Store("shared", SCALES, self._row_index(state), scale, self._dtype(greatest), guards)
            found.append(self._phase("scaled", [store]))
        return [*found, *(self._phase(f"sum{r.name}", [self._add(r, self.state.register(r, "part"))]) for r in others)]

    @property
    def _binding(self) -> AxisBinding:
        """The axes of a part."""
        (dim,) = self.state.frame.schedule.reductions[0].dims
        part = Index() if self.layout.part is None else as_index(self.layout.part)
        return self.state.bind((dim,), (self.local,), (part * dim.block_k,))

    def _row_phase(self, kind: str, name: str, roots: Sequence[Root]) -> Phase:
        """Return a phase over the elements of a part's rows."""
        share, unrolled = row_share(self.state.frame, self.local)
        shares = {s.var: s for s in self.state.frame.shares} | {self.local: share}
        return self.state.phase(kind, name, tuple(roots), tuple(v for v in unrolled if v.extent > 1), shares)

    def _shift_values(
        self, bodies: Iterable[Expr], greatest: Reduction, context: Context, shift: RegisterRead
    ) -> dict[Expr, Value]:
        """Return the values of expressions that read the maximum: the shift, or whole exponentials of scores."""
        found: dict[Expr, Value] = {}
        for node in (n for body in bodies for n in walk(body)):
            if is_row_maximum(node, greatest.name):
                found[node] = shift
            elif self.scores is not None and (score := shifted_score(node, greatest.name)) is not None:
                alone = self.is_scaled and drop_conversions(score) == drop_conversions(greatest.body)
                value = (self.scores.held, self.scores.factor) if alone else (value_of(score, context), 1.0)
                found[node] = self.scores.weight(*value, shift, dtype_of(node, self.layout.group.tensors))
        return found

    @property
    def part_sums(self) -> tuple[str, ...]:
        """Registers of a part's sums, the last numbers of its rows."""
        return tuple(f"{r.name}.part" for r in self.state.frame.segment.reductions[-1:])

    @property
    def is_scaled(self) -> bool:
        """True where the maximum is that of scores without their factor."""
        return self.scores is not None and self.scores.factor != 1

    @property
    def local(self) -> Var:
        """The variable of a part's elements."""
        return Var(f"{self.state.frame.prefix}w", self.state.frame.schedule.reductions[0].dims[0].block_k)

    def _weight(self, output: Output, binding: AxisBinding, local: Var, value: Value) -> Root:
        """Return the store of a weight, or its register; beyond the end of the row it is 0."""
        if self.chain is None:
            return shared_store(self.state, output, binding, (), value)
        if isinstance(value, Convert) and value.dtype is self.layout.group.tensors[output.tensor].dtype:
            value = value.arg  # a register of the next product is rounded so
        value = value if value.dtype is DType.F32 else Convert(value, DType.F32)
        if local in binding.valid and not self.ended:
            value = Op("select", (Test((binding.valid[local],)), value, Literal(0.0, DType.F32)), DType.F32)
        frame = self.state.frame
        at, row = (as_index(frame.tiles[self.chain.rows[1]]), as_index(local)), frame.schedule.dims[self.chain.rows[1]]
        shape = row.thread, local.extent // frame.schedule.reduction_threads
        return RegisterWrite(weights_register(self.chain), at, shape, value, DType.F32)

    def rescaled_maximum(self, factor: float) -> Phase:
        """Return the phase that gives maxima the factor of scores."""
        greatest = self.state.frame.segment.reductions[0]
        value = Literal(factor, self._dtype(greatest))
        return self._phase("scaled", [evolve(self._add(greatest, value), combine="prod")])

    def rescale(self, last: SegmentState) -> Phase:
        """Return the phase that rescales the last segment's sums.

        Each is multiplied by the scale of its row.
        """
        tiles = tuple(map(as_index, last.frame.tiles))
        roots = []
        for reduction in last.frame.segment.reductions:
            dtype = self.layout.group.tensors[reduction.name].dtype
            roots.append(Accumulate(reduction.name, tiles, "prod", self._scale(last), (), dtype))
        return instance_phase(last, "scale", roots)

    def hold_scale(self) -> Phase:
        """Return the phase that keeps the scale of the part before."""
        greatest = self.state.frame.segment.reductions[0]
        return self._phase("held", self.state.assign(greatest, "late", self.state.register(greatest, "scale")))

    def promote(self, last: SegmentState, part: str, scale: str) -> Phase:
        """Return the phase that rescales sums and adds those of a part.

        `scale` names the register of a row's scale.
        """
        (reduction,), tiles = last.frame.segment.reductions, tuple(map(as_index, last.frame.tiles))
        greatest, dtype = self.state.frame.segment.reductions[0], self._dtype(reduction)
        factor = self.row_register(f"{greatest.name}.{scale}", last)
        scaled = Accumulate(reduction.name, tiles, "prod", factor, (), dtype)
        added = evolve(scaled, combine="sum", value=RegisterRead(part, tiles, dtype))
        return instance_phase(last, "part", [scaled, added])

    def row_register(self, name: str, last: SegmentState) -> RegisterRead:
        """Return the read of a row's register in the last segment."""
        assert self.chain is not None
        at = [Index() for _ in self.state.frame.tiles]
        at[self.chain.rows[1]] = as_index(last.frame.tiles[self.chain.rows[2]])
        return RegisterRead(name, tuple(at), DType.F32)

    def _scale(self, last: SegmentState) -> Value:
        greatest = self.state.frame.segment.reductions[0]
        if self.chain is not None:
            return self.row_register(f"{greatest.name}.scale", last)
        output = next(o for o in self.state.frame.segment.outputs if o.extra)
        body = last.frame.segment.reductions[0].body
        indices = next(r.indices for r in reads(body) if r.tensor == output.tensor)
        binding = last.bind((), (), ())
        box, places = self.layout.boxes[output.tensor], axis_places(self.state.frame.segment, output.tensor)
        at: dict[int, Index] = {}
        for index, base, place in zip(indices, box.base, places, strict=True):
            if place is not None:
                at[place] = substitute(index, binding.places) - base
        address = linearise([at.get(n, Index()) for n in range(len(self._extents()))], row_major(self._extents()))
        return Load("shared", SCALES, address, self._dtype(greatest))

    def _extents(self) -> tuple[int, ...]:
        return tuple(d.block for d in self.state.frame.schedule.dims)

    def _row_index(self, state: SegmentState) -> Index:
        return linearise(tuple(map(as_index, state.frame.tiles)), row_major(self._extents()))

    def _dtype(self, reduction: Reduction) -> DType:
        return self.layout.group.tensors[reduction.name].dtype

    def _add(self, reduction: Reduction, value: Value, what: str = "") -> Accumulate:
        """Return the accumulation of a value into a row's register."""
        held = self.state.register(reduction, what)
        return Accumulate(held.name, held.at, reduction.combine, value, (), held.dtype)

    def _reduce_part(self, reduction: Reduction, value: Value) -> tuple[Root, ...]:
        """Return the roots that reduce the values of a part into registers of their own."""
        held, local = self.state.register(reduction, "part"), self.local
        valid = () if self.ended else tuple(g for v, g in self._binding.valid.items() if v == local)
        if valid:
            identity = Literal(COMBINERS[reduction.combine].identity(value.dtype), value.dtype)
            value = Op("select", (Test(valid), value, identity), value.dtype)
        over = Accumulate(held.name, held.at, reduction.combine, value, (local,), held.dtype)
        begin, end = self.state.initialise(reduction), self.state.lane_reduce(reduction)
        return evolve(begin, name=held.name), over, evolve(end, name=held.name)

    def _phase(self, name: str, roots: Iterable[Root]) -> Phase:
        return instance_phase(self.state, name, roots)
