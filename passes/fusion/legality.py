"""Legality of fusion at register and shared-memory level (DeepCuts, section 4.4).

Both follow from access maps. *Register level* asks for one normal form of all statements (`passes.fusion.normalise`):
each consumer instance reads results of its own thread or a reduction that its lanes hold. It covers simple after
complex (epilogues) and simple before complex (prologues). *Shared-memory level* is for complex after complex: the
second segment reduces over a box of the first one's result, the box fits shared memory, or comes in parts of the
reduced axis, and blocks recompute the overlaps of their boxes. Each of the two may be several products over one tile. A
*chain* is a product, rows of its results, and a product of those:

    p[i, j] = sum_c q[i, c] * k[j, c];   m[i] = max_j p[i, j];   w[i, j] = exp(p[i, j] - m[i]);   t[i] = sum_j w[i, j]
    y[i, f] = (sum_j w[i, j] * v[j, f]) / t[i]
      ->  segment (i, j): p, shared     segment (i), lanes along j: w, t, shared     segment (i, f): y

Each of the three has its own distribution over threads: tiles of registers, lanes that hold rows, tiles of registers. A
block needs the rows of its own instances of each. A `Policy` excludes fusion that is legal but never wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ...ir import (
    Expr,
    FusedGroup,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    Statement,
    Target,
    TensorType,
    Var,
    as_index,
    expr_indirects,
    expr_variables,
    factors,
    is_affine,
    is_contraction,
    is_tiled,
    operands,
    reads,
    rebuild,
    rename_statement,
    required_streamed_axis,
    solve,
    substitute,
    substitute_expr,
    variables,
)
from ...ops.language import unused_name
from ..statements import issue_slots
from .align import add_single_row
from .held_rows import column_sums
from .normalise import Illegal, normalise


@frozen
class Policy:
    """Limits of fusion beyond legality.

    `recompute` limits the issue slots of an expression that a reduction evaluates several times per element of its
    operands; `contractions` the contractions of one segment, as each keeps a tile of accumulators in registers, and
    `together` those of a segment that passes on results of several of them, or makes several results of these;
    `operations` the scalar operations of one segment's bodies; `shared` switches the shared-memory level on.
    `shared_bytes` are the bytes that one block may allocate; `chains` switches kernels of three segments on, which gain
    nothing where the threads of a block run one after another, `columns` column sums beside rows. `math` is the math
    mode of contractions of f32 (`ir.machine`), empty for products and sums in f32 itself. Where groups are `invariant`,
    they follow from structures alone, not from extents of results.
    """

    recompute: int = 16
    contractions: int = 1
    together: int = 2
    operations: int = 400
    shared: bool = True
    shared_bytes: int = 48 * 1024
    chains: bool = True
    columns: bool = False
    math: str = ""
    invariant: bool = False

    @classmethod
    def of(cls, target: Target, math: str) -> Policy:
        """Return the policy of a target."""
        return cls(
            shared_bytes=target.MAX_shared,
            math=math,
            chains=target.lockstep,
            columns=target.lockstep and not target.invariant,
            invariant=target.invariant,
        )


def register_level(
    statements: Sequence[Statement],
    tensors: Mapping[str, TensorType],
    live: Sequence[str],
    tables: Mapping[str, tuple[float, ...]],
    policy: Policy | None,
    known: Collection[str] = (),
) -> FusedGroup | Illegal:
    """Return the statements as one segment.

    Without a `policy` the statements have to be one kernel anyway. Tensors that are `known` depend on no input.
    """
    group = normalise(statements, tensors, live, tables)
    if isinstance(group, Illegal) and policy is not None and policy.columns:
        columns = column_sums(statements, tensors, live)
        group = normalise(statements, tensors, live, tables, columns) if columns else group
    if isinstance(group, Illegal) or policy is None:
        return group
    group = with_single_row(group, known) if policy.invariant else group
    return _policy_reason(group, policy) or group


def with_single_row(group: FusedGroup, known: Collection[str]) -> FusedGroup:
    """Add the axis of a row to a product of one row.

    Products of several rows have one. The matrix is `known`, or no first factor.
    """
    (segment,) = group.segments
    own = tuple(r.name for r in segment.reductions)
    if not multiplies(segment) or _is_tiled(segment) or any(o.extra for o in segment.outputs):
        return group
    for reduction in (r for r in segment.reductions if is_contraction(r, own)):
        every, (first, *_) = {*segment.axes, *reduction.reduce}, operands(reduction, own)
        if every <= expr_variables(first) and {r.tensor for r in reads(first)}.isdisjoint({*group.constants, *known}):
            return group
    types = dict(group.tensors)
    return evolve(group, segments=(add_single_row(segment, True, types),), tensors=types)


def shared_level(
    first: Sequence[Statement],
    second: Sequence[Statement],
    tensors: Mapping[str, TensorType],
    live: tuple[Sequence[str], Sequence[str]],
    tables: Mapping[str, tuple[float, ...]],
    policy: Policy,
) -> FusedGroup | Illegal:
    """Return two segments that share tensors of one shape through shared memory.

    `live` are the tensors that each half writes for others.
    """
    passed, sums = live[0], sum(s.combine is not None for s in first)
    if not passed or not sums or len(passed) > sums:  # checked ahead of forms, which take long to find
        return Illegal("the first half is not one reduced tensor")
    outside = () if any(s.combine for s in second) else (r.tensor for s in second for r in s.reads)
    if read := [t for t in outside if t in passed]:
        return Illegal(f"{read[0]} is also read outside of a reduction")
    several = evolve(policy, contractions=max(policy.contractions, policy.together))
    before = register_level(first, tensors, passed, tables, several)
    if isinstance(before, Illegal):
        return before
    known = {**tensors, **before.tensors}
    after = register_level(second, known, live[1], tables, several)
    if isinstance(after, Illegal):
        return after
    if {*before.outputs} != {*passed} or not before.segments[0].reductions:
        return Illegal("the first half is not one reduced tensor")
    if before.segments[0].holds_rows or after.segments[0].holds_rows:
        return Illegal("all threads of a block hold rows")
    if len({tensors[t].shape for t in passed}) > 1:
        return Illegal(f"{passed[0]} and {passed[1]} have different shapes")
    producer = _shared_rows(before.segments[0], after.segments[0], passed) if policy.chains else None
    producer = producer or axis_per_dim(before.segments[0], tensors[passed[0]])
    if isinstance(producer, Illegal):
        return producer
    inputs = tuple(dict.fromkeys((*before.inputs, *(t for t in after.inputs if t not in passed))))
    merged = {**before.tensors, **after.tensors}
    # An axis of extent 1 per dim changes the shape of the first half's accumulators.
    merged.update(
        {r.name: TensorType(merged[r.name].dtype, tuple(a.extent for a in producer.axes)) for r in producer.reductions}
    )
    constants = {**before.constants, **after.constants}
    found = FusedGroup((producer, after.segments[0]), merged, inputs, after.outputs, tuple(passed), constants)
    reasons = (_box_reason(after, tensor, policy, required_streamed_axis(found) is not None) for tensor in passed)
    return next((Illegal(reason) for reason in reasons if reason), found)


def _shared_rows(rows: Segment, product: Segment, passed: Sequence[str]) -> Segment | Illegal | None:
    """Return the operation of a row that a product of one row reads, nothing where there is none."""
    single = prod(axis.extent for axis in rows.axes) == 1 and any(o.extra for o in rows.outputs)
    if not single or not multiplies(product) or _is_tiled(product):
        return None
    reason = _rows_reason(rows, "") or _reader_reason(product, "", passed)
    return Illegal(reason) if reason else rows


# ---- chained contractions


def chain_level(
    parts: Sequence[Sequence[Statement]],
    tensors: Mapping[str, TensorType],
    live: Sequence[Sequence[str]],
    kept: Sequence[str],
    tables: Mapping[str, tuple[float, ...]],
    policy: Policy,
) -> FusedGroup | Illegal:
    """Return three segments that pass rows on through shared memory.

    `live` are the tensors that each part leaves, `kept` those of rows that others need, too, and find in memory.
    """
    parts, tensors, live = _copy_kept_rows(parts, tensors, live, kept)
    if reason := _statement_reason(parts, tensors, live, policy):
        return Illegal(reason)
    known, segments = dict(tensors), []
    inputs: dict[str, None] = {}
    constants: dict[str, tuple[float, ...]] = {}
    for statements, left in zip(parts, live, strict=True):
        form = register_level(statements, known, left, tables, evolve(policy, invariant=False))
        if isinstance(form, Illegal):
            return form
        known.update(form.tensors)
        inputs.update(dict.fromkeys(form.inputs))
        constants.update(form.constants)
        segments.append(form.segments[0])
    first, rows, last = segments
    (tensor,) = live[0]
    passed = tuple(t for t in live[1] if t not in kept)
    producer = axis_per_dim(first, tensors[tensor])
    if isinstance(producer, Illegal):
        return producer
    if reason := _product_reason(first) or _rows_reason(rows, tensor) or _reader_reason(last, tensor, passed):
        return Illegal(reason)
    known.update({r.name: TensorType(known[r.name].dtype, tuple(a.extent for a in producer.axes))
                  for r in producer.reductions})  # fmt: skip
    if _is_tiled(first) != _is_tiled(last):
        return Illegal("one of two products has a single row")
    if not _is_tiled(first):
        producer, rows, last = (add_single_row(s, s is not rows, known) for s in (producer, rows, last))
    if wide := [o.tensor for o in rows.outputs if o.tensor in kept and o.extra]:
        return Illegal(f"{wide[0]} is in shared memory but needed outside")
    shared = (tensor, *passed)
    written = [t for s in (producer, rows, last) for t in (*s.tensors_read, *(r.name for r in s.reductions))]
    used = dict.fromkeys((*written, *shared, *kept, *live[2]))
    outputs = (*kept, *dict.fromkeys(o.tensor for o in last.outputs))
    return FusedGroup(
        (producer, rows, last),
        {t: known[t] for t in used},
        tuple(t for t in inputs if t not in shared),
        outputs,
        shared,
        constants,
    )


def _copy_kept_rows(
    parts: Sequence[Sequence[Statement]],
    tensors: Mapping[str, TensorType],
    live: Sequence[Sequence[str]],
    kept: Sequence[str],
) -> tuple[list[Sequence[Statement]], Mapping[str, TensorType], list[Sequence[str]]]:
    """Return the parts of a chain in which the last one reads copies of the tensors that are also kept in memory."""
    types, every, left = dict(tensors), list(parts), list(live)
    for tensor in (t for t in kept if any(t in s.tensors_read for s in parts[2])):
        name, shape = unused_name(f"{tensor}.passed", types), tensors[tensor].shape
        types[name] = tensors[tensor]
        axes = tuple(Var(f"d{n}", extent) for n, extent in enumerate(shape))
        place = tuple(map(as_index, axes))
        every[1] = [*every[1], Statement(name, axes, place, Read(tensor, place))]
        every[2] = [rename_statement(s, {tensor: name}) for s in every[2]]
        left[1] = (*left[1], name)
    return every, types, left


def _statement_reason(
    parts: Sequence[Sequence[Statement]],
    tensors: Mapping[str, TensorType],
    live: Sequence[Sequence[str]],
    policy: Policy,
) -> str:
    """Return the reason against a chain that follows from statements alone: forms take long to find."""
    if len(live[0]) != 1 or not any(s.combine for s in parts[0]):
        return "the first part is not one reduced tensor"
    rows = [s for s in parts[1] if s.combine]
    if not rows or not any(s.combine for s in parts[2]):
        return "what is between two products are no rows, or nothing is reduced after them"
    if any(map(_has_single_row, parts[0])) and not any(s.combine == "max" for s in rows):
        return "a single row is not streamed"
    if all(sum(v.extent > 1 for v in s.reduce) > 1 for s in rows):
        return "rows of several axes are between two products"
    longest = max(prod(v.extent for v in s.reduce) for s in rows)
    nbytes = longest * max(tensors[t].dtype.size for t in (*live[0], *live[1]))
    if nbytes > policy.shared_bytes:
        return f"a row has {nbytes} bytes, shared memory {policy.shared_bytes}"
    if any(live[0][0] in s.tensors_read for s in parts[2]):
        return f"{live[0][0]} is also read after its rows"
    return ""


def _has_single_row(statement: Statement) -> bool:
    """Return whether an operand of a sum has an element for each term."""
    every = {v for v in (*statement.axes, *statement.reduce) if v.extent > 1}
    return statement.combine is not None and any(every <= expr_variables(r) for r in reads(statement.body))


def multiplies(segment: Segment) -> bool:
    """Return whether a segment multiplies matrices, or one row and a matrix."""
    own = tuple(r.name for r in segment.reductions)
    return any(is_contraction(r, own) for r in segment.reductions)


def _is_tiled(segment: Segment) -> bool:
    """Return whether threads compute register tiles of a contraction in a segment."""
    own = tuple(r.name for r in segment.reductions)
    return any(is_tiled(r, segment.axes, own) for r in segment.reductions)


def _product_reason(segment: Segment) -> str:
    """Return the reason why register tiles cannot compute a segment."""
    if not multiplies(segment) or segment.holds_rows or len(segment.outputs) != 1:
        return "the first part is no product"
    return ""


def _rows_reason(segment: Segment, tensor: str) -> str:
    """Return the reason why lanes cannot hold the rows of a tensor of the previous segment, and pass theirs on."""
    if _is_tiled(segment) or segment.holds_rows or any(o.guards or o.into for o in segment.outputs):
        return "what is between two products are no rows"
    if len({r.reduce for r in segment.reductions}) != 1:
        return "rows of several kinds are between two products"
    row = segment.reductions[0].reduce
    for output in segment.outputs:
        if output.extra not in ((), row):
            return f"{output.tensor} has rows of its own"
        if not _row_by_row(output.write, segment.axes, output.extra):
            return f"{output.tensor} is written at an index that is not one axis"
    if not tensor:
        return "" if len(row) == 1 else "rows of several axes are before a product"
    found = {r.indices for body in segment.expressions for r in reads(body) if r.tensor == tensor}
    if len(found) != 1 or len(row) != 1:
        return f"{tensor} is read at {len(found)} different places"
    (indices,) = found
    if indices[-1] != as_index(row[0]) or not _row_by_row(indices, segment.axes, row):
        return f"{tensor} is not read row by row"
    if any(i.tensor == tensor for body in segment.expressions for i in expr_indirects(body)):
        return f"{tensor} is what other tensors are indexed with"
    return ""


def _row_by_row(indices: Sequence[Index], axes: Sequence[Var], row: Sequence[Var]) -> bool:
    """Return whether each index is an axis, the row or 0, and each axis of several elements is one of them, once."""
    plain = [i for i in indices if i.terms]
    wanted = [as_index(v) for v in (*axes, *row) if v.extent > 1]
    every = {as_index(v) for v in (*axes, *row)}
    return (
        {*plain} <= every and all(plain.count(w) == 1 for w in wanted) and all(i.terms or not i.const for i in indices)
    )


def _reader_reason(segment: Segment, tensor: str, passed: Sequence[str]) -> str:
    """Return the reason why a segment cannot read its operand from the rows in shared memory."""
    if not multiplies(segment) or segment.holds_rows:
        return "no product is after the rows"
    reduced = frozenset(v for r in segment.reductions for v in r.reduce)
    for name in passed:
        found = {r.indices for body in segment.expressions for r in reads(body) if r.tensor == name}
        if len(found) != 1:
            return f"{name} is read at {len(found)} different places"
        (indices,) = found
        if not all(is_affine(i) for i in indices):
            return f"{name} is read at an index that is not affine"
        if any(variables(i) & reduced and i not in {as_index(v) for v in reduced} for i in indices):
            return f"{name} is not read row by row"
    if any(i.tensor in passed for body in segment.expressions for i in expr_indirects(body)):
        return "what rows leave is what other tensors are indexed with"
    return "" if any(expr_variables(b) & reduced for b in segment.expressions) else "nothing is reduced after the rows"


# ---- legal but unwanted


def _policy_reason(group: FusedGroup, policy: Policy) -> Illegal | None:
    (segment,) = group.segments
    own = tuple(r.name for r in segment.reductions)
    tiled = [r for r in segment.reductions if is_tiled(r, segment.axes, own)]
    if len(tiled) > policy.contractions:
        return Illegal(f"{len(tiled)} contractions in one segment compete for registers")
    if tiled and len(segment.reductions) > len(tiled):
        return Illegal("a contraction and another reduction in one segment need different distributions over threads")
    if tiled and any(o.extra for o in segment.outputs):
        return Illegal(
            "a contraction's result would be broadcast, and its threads would write the copies one after another"
        )
    if segment.reductions and any(o.extra and o.into for o in segment.outputs):
        return Illegal("a row's reduction would leave few threads for the atomic operations of its elements")
    if issue_slots(*segment.expressions) > policy.operations * max(1, len(segment.outputs) // 4):
        return Illegal(f"the bodies have more than {policy.operations} issue slots")
    for reduction in segment.reductions:
        for part in factors(reduction.body) if reduction.combine == "sum" else (reduction.body,):
            times = _repetition(part, reduction, segment, group.tensors, policy.invariant)
            if not isinstance(part, Read) and times > 1 and issue_slots(part) > policy.recompute:
                return Illegal(
                    f"an expression of {issue_slots(part)} issue slots would be recomputed about {times} times per "
                    f"element"
                )
    return None


def _repetition(
    part: Expr, reduction: Reduction, segment: Segment, tensors: Mapping[str, TensorType], invariant: bool
) -> int:
    """Return how often a reduction evaluates a part per element of the largest tensor that the part reads.

    Where that must be `invariant`, it is several times for any part that lacks an axis.
    """
    axes = (*segment.axes, *reduction.reduce)
    if invariant:
        every = {v for v in axes if v.extent > 1 or multiplies(segment)}
        return 1 + (not every <= expr_variables(part))
    points = prod(v.extent for v in axes)
    sizes = [tensors[r.tensor].size for r in reads(part)]
    return points // max(1, *sizes, 1)


# ---- the box that lives in shared memory


def _box_reason(group: FusedGroup, tensor: str, policy: Policy, in_parts: bool) -> str:
    """Return the reason why the second segment cannot read its operand from shared memory, "" where it can; an operand
    in parts may have any size.
    """
    (segment,) = group.segments
    if any(r.tensor == tensor for o in segment.outputs for r in reads(o.body)):
        return f"{tensor} is also read outside of a reduction"
    if any(tensor in {i.tensor for i in expr_indirects(body)} for body in segment.expressions):
        return f"{tensor} is what other tensors are indexed with"
    found = {r.indices for reduction in segment.reductions for r in reads(reduction.body) if r.tensor == tensor}
    if len(found) != 1:
        return f"{tensor} is read at {len(found)} different places"
    (indices,) = found
    if not all(is_affine(i) for i in indices):
        return f"{tensor} is read at an index that is not affine"
    rows = {v for reduction in segment.reductions for v in reduction.reduce}
    box = tuple(box_extent(i, {v: v.extent for v in rows}) for i in indices)
    size = prod(box) * group.tensors[tensor].dtype.size
    if size > policy.shared_bytes and not in_parts:
        return f"one element needs {size} bytes of {tensor}, shared memory has {policy.shared_bytes}"
    return ""


def box_extent(index: Index, tiles: Mapping[Var, int]) -> int:
    """Return how many neighbouring values an affine index spans.

    Each variable covers a tile, 1 where none is given.
    """
    return 1 + sum(abs(factor) * (tiles.get(atom, 1) - 1) for atom, factor in index.terms if isinstance(atom, Var))


def axis_per_dim(segment: Segment, type_: TensorType) -> Segment | Illegal:
    """Return a segment with an axis for each dim of its results.

    The dims are those of the written tensors of `type_`, at one place, with extent 1 too. Merged dims, such as heads
    and their groups, are divided again.
    """
    output = segment.outputs[0]
    if any(o.extra for o in segment.outputs):
        return Illegal("the first half is a row operation")
    if any(o.write != output.write for o in segment.outputs):
        return Illegal(f"{segment.outputs[1].tensor} is written at other places than {output.tensor}")
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))
    dims = {Var(f"d{n}", axis.extent): as_index(axis) for n, axis in enumerate(axes)}  # no names of the segment's own
    places = [(write, as_index(dim)) for write, dim in zip(output.write, dims, strict=True) if write.terms]
    found = solve(places, segment.axes)
    if found is None or found.guards or found.free:
        return Illegal(f"{output.tensor} is written at an index that is no number made of axes")
    values = {old: substitute(new, dims) for old, new in found.values.items()}
    names = {r.name for r in segment.reductions}

    def move(expr: Expr) -> Expr:
        return rebuild(substitute_expr(expr, values), leaf)

    def leaf(node: Expr) -> Expr:
        held = isinstance(node, Read) and node.tensor in names
        return Read(node.tensor, tuple(as_index(a) for a in axes)) if held and isinstance(node, Read) else node

    reductions = tuple(evolve(r, body=move(r.body)) for r in segment.reductions)
    place = tuple(substitute(w, values) for w in output.write)
    return Segment(axes, reductions, tuple(Output(o.tensor, place, move(o.body)) for o in segment.outputs))
