"""Split keys: a chain with few rows becomes two kernels.

Parts of its columns fill the machine. The first kernel is the chain over a part; its maximum, sums and weighted values
are workspaces; the second one combines these states in a fixed order and applies the epilogue (flash decoding):

    m[i] = max_j z[i, j];   t[i] = sum_j exp(z[i, j] - m[i]);   y[i, f] = (sum_j exp(z[i, j] - m[i]) * v[j, f]) / t[i]
      ->   n[p, i], s[p, i], x[p, i, f] = m, t and the undivided y of part p
           m[i] = max_p n[p, i];   t[i] = sum_p exp(n[p, i] - m[i]) * s[p, i]
           y[i, f] = (sum_p exp(n[p, i] - m[i]) * x[p, i, f]) / t[i]

A row that is -inf throughout a part has other elements elsewhere: 0 is subtracted for such a maximum. The last block of
a head that arrives could combine its states in the first kernel: tokens of decoders take 0.999 to 1.006 times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod

from attrs import evolve, frozen

from ...ir import (
    Call,
    Cast,
    Const,
    DType,
    Expr,
    FusedGroup,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    Target,
    TensorType,
    Var,
    as_index,
    call,
    reads,
    rebuild,
    substitute,
    substitute_expr,
)
from ..geometry import RegisterChain, drop_conversions, is_row_maximum, register_chain, split_divisor
from .split_reduction import free_name, free_tensor, group_part

#: Fewest columns of a part, rows of a block, about, and numbers of parts to compare: a block for each SM, or several.
MIN_PART, BLOCK_ROWS, MAX_CANDIDATES = 128, 64, 3
#: Most rows of a block of one warp, and blocks of a warp that an SM needs to copy and convert at its rate.
WARP_ROWS, WARPS_PER_SM = 16, 4


def chain_candidates(group: FusedGroup, target: Target) -> tuple[int, ...]:
    """Return the numbers of parts to compare, least first.

    None where blocks fill the machine without parts.
    """
    chain = register_chain(group)
    if chain is None or not target.lockstep or _leaves_rows(group):
        return ()
    columns, last = group.segments[0].axes[chain.column].extent, group.segments[2]
    rows, width = (last.axes[n].extent for n in (chain.rows[2], chain.width))
    blocks = prod(a.extent for a in last.axes) // (rows * width) * -(-rows // BLOCK_ROWS)
    found = [1 << k for k in range(1, 16) if MIN_PART << k <= columns and columns % (1 << k) == 0]
    if blocks > target.NUM_SM * (WARPS_PER_SM if rows <= WARP_ROWS else 1):
        return ()
    return tuple(p for p in found if p == found[-1] or 2 * blocks * p >= target.NUM_SM)[:MAX_CANDIDATES]


def split_chain(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup] | None:
    """Return the kernels of a chain's parts and of their combination.

    None where the group is no chain, where parts are uneven, or rows leave numbers in memory.
    """
    chain = register_chain(group)
    if chain is None or group.segments[0].axes[chain.column].extent % parts:
        return None
    if _leaves_rows(group):
        return None
    return _Parts.of(group, chain, parts).groups()


def _leaves_rows(group: FusedGroup) -> bool:
    """Return whether numbers of rows are results of a chain."""
    return any(o.tensor not in group.shared for o in group.segments[1].outputs)


@frozen
class _Parts:
    """A chain in parts: `part` numbers them, `states` are the workspaces of its reductions, of these `types`."""

    group: FusedGroup
    chain: RegisterChain
    part: Var
    states: Mapping[str, str]
    types: Mapping[str, TensorType]

    @classmethod
    def of(cls, group: FusedGroup, chain: RegisterChain, parts: int) -> _Parts:
        """Return the parts of a chain and its workspaces."""
        states: dict[str, str] = {}
        types: dict[str, TensorType] = {}
        for reduction in (r for segment in group.segments[1:] for r in segment.reductions):
            kind, name = group.tensors[reduction.name], free_tensor("parts", group, types)
            states[reduction.name], types[name] = name, TensorType(kind.dtype, (parts, *kind.shape))
        part = Var(free_name("part", group.segments[2], group.segments[1].axes), parts)
        return cls(group, chain, part, states, types)

    def groups(self) -> tuple[FusedGroup, FusedGroup]:
        """Return the kernel of the parts and that of their combination."""
        first, rows, last = self.group.segments
        weights = next(o for o in rows.outputs if o.extra)
        undivided = evolve(weights, body=split_divisor(weights.body)[0])
        segments = (
            self._part_of(first, first.axes[self.chain.column], first.outputs, ()),
            self._part_of(rows, rows.reductions[0].reduce[0], (undivided,), rows.reductions),
            self._part_of(last, last.reductions[0].reduce[0], (), last.reductions),
        )
        inside = self.chain.scores, self.chain.weights
        types = {**self.types, **self._inner_types(segments)}
        before = group_part(self.group, segments, types, tuple(self.types), inside)
        return before, group_part(self.group, (self._combination(),), self.types, self.group.outputs)

    # ---- the kernel of the parts

    def _part_of(self, segment: Segment, axis: Var, outputs: Sequence[Output], states: Sequence[Reduction]) -> Segment:
        """Return a segment over a part of `axis`, which also writes the states of some reductions."""
        inner = Var(axis.name, axis.extent // self.part.extent)
        whole = {axis: as_index(self.part) * inner.extent + as_index(inner)}
        own, greatest = {self.chain.scores, self.chain.weights, *(r.name for r in segment.reductions)}, self._greatest

        def place(indices: Sequence[Index]) -> tuple[Index, ...]:
            return (as_index(self.part), *(substitute(i, {axis: as_index(inner)}) for i in indices))

        def leaf(node: Expr) -> Expr:
            if not isinstance(node, Read) or node.tensor not in own:
                return node
            read = evolve(node, indices=place(node.indices))
            return _finite(read, self.group.tensors[greatest].dtype) if read.tensor == greatest else read

        def move(expr: Expr) -> Expr:
            return substitute_expr(rebuild(_without_guards(expr, greatest), leaf), whole)

        def axes(found: Sequence[Var]) -> tuple[Var, ...]:
            return tuple(inner if v == axis else v for v in found)

        reductions = tuple(evolve(r, reduce=axes(r.reduce), body=move(r.body)) for r in segment.reductions)
        moved = (evolve(o, write=place(o.write), body=move(o.body), extra=axes(o.extra)) for o in outputs)
        every = (self.part, *axes(segment.axes))
        at = tuple(map(as_index, every))
        kept = (Output(self.states[r.name], at, Read(r.name, at)) for r in states)
        return Segment(every, reductions, (*moved, *kept))

    def _inner_types(self, segments: Sequence[Segment]) -> dict[str, TensorType]:
        """Return the types of reductions, scores and weights in the kernel of the parts."""
        found = {}
        for segment in segments:
            for reduction in segment.reductions:
                found[reduction.name] = tuple(a.extent for a in segment.axes)
            for output in (o for o in segment.outputs if o.tensor in self.group.tensors):
                extents = {as_index(v): v.extent for v in (*segment.axes, *output.extra)}
                found[output.tensor] = tuple(extents.get(index, 1) for index in output.write)
        return {name: TensorType(self.group.tensors[name].dtype, shape) for name, shape in found.items()}

    @property
    def _greatest(self) -> str:
        """The maximum of a row."""
        return self.group.segments[1].reductions[0].name

    # ---- the combination

    def _combination(self) -> Segment:
        """Return the segment that combines the states of all parts and applies the epilogue."""
        _, rows, last = self.group.segments
        at, row = tuple(map(as_index, last.axes)), self._row_of_results()
        place = tuple(row.get(axis, Index()) for axis in rows.axes)
        greatest = self._greatest
        state = Read(self.states[greatest], (as_index(self.part), *place))
        scale = call("exp", call("sub", state, _finite(Read(greatest, at), self.group.tensors[greatest].dtype)))
        combined = [Reduction(greatest, (self.part,), "max", state)]
        for reduction, where in (*((r, place) for r in rows.reductions[1:]), *((r, at) for r in last.reductions)):
            value = Read(self.states[reduction.name], (as_index(self.part), *where))
            combined.append(Reduction(reduction.name, (self.part,), "sum", call("mul", scale, value)))
        outputs = tuple(evolve(o, body=rebuild(o.body, self._epilogue(row, at))) for o in last.outputs)
        return Segment(last.axes, tuple(combined), outputs)

    def _row_of_results(self) -> dict[Var, Index]:
        """Map the axes of rows to indices of the last segment."""
        _, rows, last = self.group.segments
        weights = next(o for o in rows.outputs if o.extra)
        read = next(r for r in reads(last.reductions[0].body) if r.tensor == self.chain.weights)
        return {a: i for a in rows.axes for w, i in zip(weights.write, read.indices, strict=True) if w == as_index(a)}

    def _epilogue(self, row: Mapping[Var, Index], at: tuple[Index, ...]) -> Callable[[Expr], Expr]:
        """Return the replacement of reads in the outputs of the last segment."""
        _, rows, last = self.group.segments
        numbers = {o.tensor: o.body for o in rows.outputs if not o.extra}
        own, divisor = {r.name for r in rows.reductions}, self.chain.divisor

        def of_row(expr: Expr) -> Expr:
            return rebuild(substitute_expr(expr, row), number)

        def number(node: Expr) -> Expr:
            return evolve(node, indices=at) if isinstance(node, Read) and node.tensor in own else node

        def leaf(node: Expr) -> Expr:
            if not isinstance(node, Read) or node.tensor not in (*numbers, *(r.name for r in last.reductions)):
                return node
            if node.tensor in numbers:
                return Cast(self.group.tensors[node.tensor].dtype, of_row(numbers[node.tensor]))
            if divisor is None:
                return node
            return call("div", node, Cast(self.group.tensors[node.tensor].dtype, of_row(divisor)))

        return leaf


def _without_guards(expr: Expr, greatest: str) -> Expr:
    """Return an expression without guards that replace an infinite maximum."""
    if isinstance(expr, Call) and is_row_maximum(drop_conversions(expr), greatest):
        return expr.args[1]
    return expr.with_children(tuple(_without_guards(c, greatest) for c in expr.children)) if expr.children else expr


def _finite(read: Read, dtype: DType) -> Expr:
    """Return a number, 0 for -inf."""
    return call("select", call("ne", read, Const(-inf, dtype)), read, Const(0.0, dtype))
