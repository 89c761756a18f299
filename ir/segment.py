"""Index IR of a fusion group in normal form.

A *segment* is a register-level group. Every instance of its parallel `axes` is computed by one thread, or by the
threads that share a reduction: first the reductions in order, then the outputs. A *fused group* is a list of segments;
a later one reads tensors of an earlier one through shared memory (DeepCuts section 4.4, the two fusion levels).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod

from attrs import evolve, field, frozen

from .affine import Guard, Index, Var, as_index, indirects, variables
from .expr import Call, Cast, Expr, Read, find_interned, intern
from .traversal import block_scales, expr_indirects, expr_variables, factors, reads, share
from .types import TensorType

#: Elements of a row that a scan combines: (whether the later ones, whether without the element itself).
SCAN_MODES = {"upto": (False, False), "before": (False, True), "from": (True, False), "behind": (True, True)}
#: Sort orders of rows, and whether they rise.
SORT_ORDERS = {"rising": True, "falling": False}


@frozen(cache_hash=True)
class Reduction:
    """Reduction `name[axes] = combine over reduce of body(axes, reduce)`.

    Each thread of an instance holds the value afterwards. Later reductions and outputs read it as `Read(name, axes)`.
    `combine` is sum, prod, max or min. `math` names the math mode of a sum of products (`ir.machine.MATH_MODES`).

    With `along`, one of `SCAN_MODES`, there is a value for each element of the row (a scan), which others read as
    `Read(name, (*axes, *reduce))`. It combines the elements up to the element, before it, from it on, or after it; or
    it is the body, where that reads the value before as `name` (a recurrence). With one of `SORT_ORDERS`, element c of
    the row is the place of the c-th of all values of the body (a sort): NaN is greatest, equal values keep their order.
    """

    name: str
    reduce: tuple[Var, ...]
    combine: str
    body: Expr
    math: str = ""
    along: str = ""


@frozen(cache_hash=True)
class Output:
    """Store `tensor[write(axes, extra)] = body(axes, extra)` where all `guards` hold.

    The `extra` axes are spread over the threads of an instance. With `into`, a reduction of values, the body is
    combined with the stored value by one atomic operation: the kernel expects the identity in every element that has no
    value yet. With `across`, the element is that reduction over all writers: a column sum, or one that keeps row axes.
    """

    tensor: str
    write: tuple[Index, ...]
    body: Expr
    extra: tuple[Var, ...] = ()
    guards: tuple[Guard, ...] = ()
    into: str | None = None
    across: str | None = None


@frozen(cache_hash=True)
class Segment:
    """Register-level group over common parallel axes.

    Row spaces (the `reduce` of a reduction, the `extra` of an output) of equal extents use the same variables, so that
    equal computations on the same elements are one node of the data-flow graph.
    """

    axes: tuple[Var, ...]
    reductions: tuple[Reduction, ...]
    outputs: tuple[Output, ...]

    @property
    def holds_rows(self) -> bool:
        """Return whether scans, sorts, column sums or kept sums need whole rows."""
        return any(r.along for r in self.reductions) or any(o.across for o in self.outputs)

    @property
    def column_sums(self) -> tuple[Output, ...]:
        """Outputs across instances."""
        return tuple(o for o in self.outputs if o.across and o not in self.kept_sums)

    @property
    def kept_sums(self) -> tuple[Output, ...]:
        """Outputs that sum each row alone, and keep some of its axes."""
        sums = [o for o in self.outputs if o.across and not any(r.along for r in self.reductions)]
        return tuple(o for o in sums if all(any(w.coefficient(a) for w in o.write) for a in self.axes if a.extent > 1))

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """All bodies, reductions first."""
        return tuple(r.body for r in self.reductions) + tuple(o.body for o in self.outputs)

    @property
    def tensors_read(self) -> tuple[str, ...]:
        """Tensors read from memory, in order of first use.

        Those read as values come first, then those in indices.
        """
        own = {r.name for r in self.reductions}
        values = (r.tensor for body in self.expressions for r in reads(body))
        inner = (i.tensor for body in self.expressions for i in expr_indirects(body))
        written = (i.tensor for output in self.outputs for index in output.write for i in indirects(index))
        places = (*inner, *written)
        return tuple(dict.fromkeys(t for t in (*values, *places) if t not in own))


def _intern(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    known: dict[Expr, Expr] = {}
    return tuple(find_interned(segment) or intern(_share_parts(segment, known)) for segment in segments)


def _share_parts(segment: Segment, known: dict[Expr, Expr]) -> Segment:
    reductions = tuple(evolve(each, body=share(each.body, known)) for each in segment.reductions)
    outputs = tuple(evolve(each, body=share(each.body, known)) for each in segment.outputs)
    return evolve(segment, reductions=reductions, outputs=outputs)


@frozen
class FusedGroup:
    """Normal form of a group of graph nodes: one kernel.

    `tensors` has the types of every tensor read or written and of every reduction value. `shared` are the tensors that
    only live in shared memory, written by one segment and read by a later one. `inputs` and `outputs` live in global
    memory. `constants` holds small tables that lowering folds, row-major. `fixed` are inputs that are constants of the
    graph, as weights; the others are assumed to lie in the cache, since their producer ran just before. `operations`
    name the kernel. Equal groups may differ in these two. `memo` caches derived facts.
    """

    segments: tuple[Segment, ...] = field(converter=_intern)
    tensors: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: tuple[str, ...] = ()
    constants: Mapping[str, tuple[float, ...]] = field(factory=dict)
    fixed: tuple[str, ...] = field(default=(), eq=False)
    operations: tuple[str, ...] = field(default=(), eq=False)
    memo: dict[str, object] = field(factory=dict, init=False, eq=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Return its construction in another process, without the cached facts."""
        parts = self.segments, self.tensors, self.inputs, self.outputs, self.shared, self.constants
        return FusedGroup, (*parts, self.fixed, self.operations)

    @property
    def adds_to_memory(self) -> bool:
        """Return whether an output is combined with the stored value.

        A second run then gives another result.
        """
        return any(output.into for segment in self.segments for output in segment.outputs)


def stored_factor(factor: Expr, math: str = "") -> Expr:
    """Return a factor as it is stored, without a widening conversion.

    Conversions of reads to four bytes or more are removed. Factors of a `math` mode are converted before.
    """
    widened = isinstance(factor, Cast) and factor.dtype.size >= 4 and isinstance(factor.arg, Read)
    return factor.arg if isinstance(factor, Cast) and widened and not math else factor


def operands(reduction: Reduction, own: Iterable[str] = ()) -> tuple[Expr, ...]:
    """Return the stageable parts of a reduction's body, in order, once each.

    For a sum of products these are the factors that vary with an axis, whole expressions included (a factor such as
    `relu(x * a + b)` is staged as its value, a converted one as its unconverted value), but for scales of blocks; for
    any other body the reads. `own` names values of earlier reductions, which live in registers.
    """
    return _operands(reduction, frozenset(own))


@lru_cache(maxsize=1 << 14)
def _operands(reduction: Reduction, held: frozenset[str]) -> tuple[Expr, ...]:
    scales, _ = block_scales(reduction.body, reduction.reduce)
    every = [part for part in factors(reduction.body) if part not in scales]
    stored = tuple(stored_factor(part, reduction.math) for part in every)
    parts = stored if reduction.combine == "sum" else (reduction.body,)
    if len(parts) == 1:
        parts = reads(reduction.body)
    found = []
    for part in parts:
        inner = reads(part)
        if inner and expr_variables(part) and not any(r.tensor in held for r in inner):
            found.append(part)
    return tuple(dict.fromkeys(found))


def is_tiled(reduction: Reduction, axes: Iterable[Var], own: Iterable[str] = ()) -> bool:
    """Return whether each operand of a contraction over `axes` is reused.

    A sum over an operand with an element for each term, with any weights, is distributed over threads as rows are.
    """
    every = {*axes, *reduction.reduce}
    return is_contraction(reduction, own) and not any(every <= expr_variables(p) for p in operands(reduction, own))


def is_contraction(reduction: Reduction, own: Iterable[str] = ()) -> bool:
    """Return whether a reduced axis touches operands with different other axes."""
    if not isinstance(reduction.body, Call) or reduction.combine != "sum" or reduction.along:
        return False
    parts = [expr_variables(part) for part in operands(reduction, own)]
    return any(len({used for used in parts if axis in used}) >= 2 for axis in reduction.reduce)


# ---- sorted rows whose readers take some elements

#: Elements that a selection leaves besides those that are read; half as many at least for a network's powers of two.
SELECTION_SLACK = 32
#: Most of them that are sorted by counting for each the elements before it.
MAX_COUNTED_WORDS = 160


def read_ranks(segment: Segment, reduction: Reduction) -> tuple[int, int]:
    """Return the range of ranks of a sorted row that others read."""
    (row,) = reduction.reduce
    if any(r.tensor == reduction.name for other in segment.reductions for r in reads(other.body)):
        return 0, row.extent
    found = []
    for output in segment.outputs:
        if any(r.tensor == reduction.name for r in reads(output.body)):
            limits = [(g.low, g.high) for g in output.guards if g.index == as_index(row)]
            found.append(limits[0] if limits else (0, row.extent))
    if not found:
        return 0, row.extent
    return max(0, min(low for low, _ in found)), min(row.extent, max(high for _, high in found))


def selection_room(ranks: tuple[int, int], extent: int) -> int:
    """Return the most elements that a selection leaves, 0 for whole sorts.

    It finds the first elements of an order, or one, by counting the elements below bounds that close in on the last.
    """
    low, high = ranks
    if low and high - low > 1:
        return 0
    room = high - low + SELECTION_SLACK
    if room > MAX_COUNTED_WORDS:
        room = 1 << (high - low + SELECTION_SLACK // 2 - 1).bit_length()
    return room if 2 * room <= extent else 0


def selection_words(ranks: tuple[int, int], extent: int) -> int:
    """Return the shared memory of a selection and its results, in words."""
    room = selection_room(ranks, extent)
    return room and room + (ranks[1] - ranks[0] + 1) // 2


# ---- intermediate axes that are streamed in blocks from one segment to the next

#: Elements of an axis between two products from which on it is streamed in blocks, for any products.
MIN_STREAMED_EXTENT = 1024


def streamable_axis(group: FusedGroup) -> int | None:
    """Return the axis that can be streamed between two segments.

    It is the position of the axis of the first segment along which the last one sums everything that it reads of that
    segment; None without such an axis, or without two segments.

        h[i, j] = f(sum_c x[i, c] * w[j, c]);   y[i, k] = sum_j h[i, j] * v[j, k]
          ->   for each part of j:  h of that part;   y[i, k] += sum over the part of h[i, j] * v[j, k]

    A block then has room for a part of h. Each sum takes its elements of h along that one axis, once.
    """
    found = _axis(group.segments, group.shared) if len(group.segments) == 2 else None
    return None if found is None else found[0]


def streamed_variables(group: FusedGroup) -> frozenset[Var]:
    """Return the last segment's reduced variables along the streamed axis."""
    found = _axis(group.segments, group.shared) if len(group.segments) == 2 else None
    return frozenset() if found is None else found[1]


def required_streamed_axis(group: FusedGroup) -> int | None:
    """Return the axis streamed with several products or in no whole tile."""
    axis = streamable_axis(group)
    if axis is None or (not has_dependent_sizes(group) and group.segments[0].axes[axis].extent <= MIN_STREAMED_EXTENT):
        return None
    return axis


def has_dependent_sizes(group: FusedGroup) -> bool:
    """Return whether the tile sizes of segments depend on each other.

    Such groups have few candidate schedules.
    """
    if is_exchange(group):
        return False
    return len(group.segments) > 2 or (len(group.segments) > 1 and any(len(s.reductions) > 1 for s in group.segments))


@lru_cache(maxsize=4096)
def _axis(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> tuple[int, frozenset[Var]] | None:
    first, last = segments
    written = {o.tensor: o for o in first.outputs}
    if {*written} != {*shared} or any(o.extra or o.guards or o.into for o in first.outputs):
        return None
    own = {r.name for r in last.reductions}
    if not own or any(r.tensor in written for o in last.outputs for r in reads(o.body)):
        return None
    found = [_sum_axes(reduction, written, own, first.axes) for reduction in last.reductions]
    common = frozenset.intersection(*(frozenset(each) for each in found))
    if not common:
        return None
    place = max(common, key=lambda n: (first.axes[n].extent, n))
    return place, frozenset(each[place] for each in found)


def _sum_axes(reduction: Reduction, written: dict[str, Output], own: set[str], axes: tuple[Var, ...]) -> dict[int, Var]:
    """Map each axis of the first segment that a reduction sums in all its reads of that segment to its variable."""
    every = reads(reduction.body)
    passed = [r for r in every if r.tensor in written]
    if reduction.along or not passed or any(r.tensor in own for r in every):
        return {}
    found: dict[int, Var] = {}
    for row in reduction.reduce:
        places = {_enumerated_axis(read, written[read.tensor], row, axes) for read in passed}
        if len(places) == 1 and (place := places.pop()) is not None:
            found[place] = row
    return found


def _enumerated_axis(read: Read, output: Output, row: Var, axes: tuple[Var, ...]) -> int | None:
    """Return the axis whose elements a variable enumerates in a tensor that an output writes."""
    moving = [d for d, index in enumerate(read.indices) if row in variables(index)]
    if len(moving) != 1 or read.guards or read.indices[moving[0]] != as_index(row):
        return None
    place = next((n for n, axis in enumerate(axes) if output.write[moving[0]] == as_index(axis)), None)
    return place if place is not None and axes[place].extent == row.extent > 1 else None


# ---- pointwise segments that exchange values through shared memory


def is_exchange(group: FusedGroup) -> bool:
    """Return whether pointwise segments exchange values through shared memory.

    A block computes all elements of the passed tensors along every axis but the owned ones (`owned_axes`).
    """
    return len(group.segments) > 1 and not any(segment.reductions for segment in group.segments)


@lru_cache(maxsize=4096)
def owned_axes(segments: tuple[Segment, ...], shared: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the positions of common axes, for each segment of an exchange.

    Each segment reads results of the one before at its own value of these axes, so that blocks divide them.

        h[b, k, j] = f(x[b, k + 4 * j]);   y[b, j, k] = g(h[b, k, j], h[b, 3 - k, j])     ->   b and j
    """
    chains: list[tuple[int, ...]] = [(n,) for n in range(len(segments[0].axes))]
    for writer, reader in pairwise(segments):
        links = _links(writer, reader, shared)
        chains = [(*chain, links[chain[-1]]) for chain in chains if chain[-1] in links]
    return tuple(zip(*chains, strict=True)) if chains else tuple(() for _ in segments)


#: Least bytes of exchanged tensors, for each element of the owned axes, that replace each other.
MIN_REPLACED_BYTES = 12 << 10


def replaced_exchanges(
    segments: tuple[Segment, ...], shared: tuple[str, ...], tensors: Mapping[str, TensorType]
) -> tuple[str, ...]:
    """Return the tensors of an exchange that replace the first one.

    They are all others, where each segment passes one on and blocks have little room: threads hold values meanwhile.
    """
    writes = [{o.tensor for o in s.outputs if o.tensor in shared} for s in segments[:-1]]
    if len(segments) < 3 or any(len(w) != 1 for w in writes) or len({tensors[t].dtype for t in shared}) != 1:
        return ()
    rows = prod(segments[0].axes[n].extent for n in owned_axes(segments, shared)[0])
    nbytes = sum(tensors[t].nbytes for t in shared) // rows
    return tuple(t for (t,) in writes[1:]) if nbytes >= MIN_REPLACED_BYTES else ()


def _links(writer: Segment, reader: Segment, shared: tuple[str, ...]) -> dict[int, int]:
    """Map axes of a segment to those of its reader that have the same place in each tensor that it passes."""
    common: set[tuple[int, int]] | None = None
    for tensor in dict.fromkeys(o.tensor for o in writer.outputs if o.tensor in shared):
        writes = {o.write for o in writer.outputs if o.tensor == tensor}
        found = {r.indices for body in reader.expressions for r in reads(body) if r.tensor == tensor}
        pairs = {
            (a, b)
            for written, taken in zip(zip(*writes, strict=True), zip(*found, strict=True), strict=True)
            for a, axis in enumerate(writer.axes)
            for b, other in enumerate(reader.axes)
            if axis.extent == other.extent > 1 and {*written} == {as_index(axis)} and {*taken} == {as_index(other)}
        }
        common = pairs if common is None else common & pairs
    return dict(sorted(common or ()))
