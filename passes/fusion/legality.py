"""Which statements may share a kernel, and how: register level or shared-memory level (DeepCuts section 4.4), both from
access maps.

*Register level* asks for one normal form of all statements (`passes.fusion.normalise`): each consumer instance reads
what its own thread produced or a reduction that its lanes hold. It covers simple after complex (epilogues) and simple
before complex (prologues). *Shared-memory level* is for complex after complex: the second segment reduces over a box of
the first one's result, the box fits shared memory, and blocks recompute what their boxes overlap. A `Policy` says what
is legal but never wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from attrs import evolve, frozen

from ...ir import (
    FUNCTIONS,
    Call,
    Cast,
    Expr,
    FusedGroup,
    Index,
    Output,
    Read,
    Reduction,
    Segment,
    Statement,
    TensorType,
    Var,
    as_index,
    expr_indirects,
    factors,
    is_affine,
    is_tiled,
    reads,
    rebuild,
    substitute,
    substitute_expr,
)
from .normalise import Illegal, normalise


@frozen
class Policy:
    """What fusion does not do although it could.

    `recompute` limits the issue slots of an expression that a reduction evaluates several times per element of what it
    reads; `contractions` the contractions of one segment, as each keeps a tile of accumulators in registers;
    `operations` the scalar operations of one segment's bodies; `shared` switches the shared-memory level on.
    `shared_bytes` is what one block may allocate. `math` is the math mode of sums of products of f32 (`ir.atoms`),
    empty for products and sums in f32 itself.
    """

    recompute: int = 16
    contractions: int = 1
    operations: int = 400
    shared: bool = True
    shared_bytes: int = 48 * 1024
    math: str = ""


def register_level(
    statements: Sequence[Statement],
    tensors: Mapping[str, TensorType],
    live: Sequence[str],
    tables: Mapping[str, tuple[float, ...]],
    policy: Policy | None,
) -> FusedGroup | Illegal:
    """Return the statements as one segment; no policy for what has to be a kernel anyway."""
    group = normalise(statements, tensors, live, tables)
    if isinstance(group, Illegal) or policy is None:
        return group
    return _unwanted(group, policy) or group


def shared_level(
    first: Sequence[Statement],
    second: Sequence[Statement],
    tensors: Mapping[str, TensorType],
    live: tuple[Sequence[str], Sequence[str]],
    tables: Mapping[str, tuple[float, ...]],
    policy: Policy,
) -> FusedGroup | Illegal:
    """Return two segments that share one tensor through shared memory; `live` are the tensors that each half leaves
    behind.
    """
    if len(live[0]) != 1 or not any(s.combine for s in first):  # told before forms are looked for, which takes long
        return Illegal("the first half is not one reduced tensor")
    if not any(s.combine for s in second) and any(r.tensor == live[0][0] for s in second for r in s.reads):
        return Illegal(f"{live[0][0]} is also read outside of a reduction")
    before = register_level(first, tensors, live[0], tables, policy)
    if isinstance(before, Illegal):
        return before
    known = {**tensors, **before.tensors}
    after = register_level(second, known, live[1], tables, policy)
    if isinstance(after, Illegal):
        return after
    if len(before.outputs) != 1 or not before.segments[0].reductions:
        return Illegal("the first half is not one reduced tensor")
    if before.segments[0].holds_rows or after.segments[0].holds_rows:
        return Illegal("all threads of a block hold rows")
    (tensor,) = before.outputs
    if reason := _box_reason(after, tensor, policy):
        return Illegal(reason)
    producer = _axis_per_dim(before.segments[0], tensors[tensor])
    if isinstance(producer, Illegal):
        return producer
    inputs = tuple(dict.fromkeys((*before.inputs, *(t for t in after.inputs if t != tensor))))
    merged = {**before.tensors, **after.tensors}
    # An axis of extent 1 per dim changes the shape of the first half's accumulators.
    merged.update(
        {r.name: TensorType(merged[r.name].dtype, tuple(a.extent for a in producer.axes)) for r in producer.reductions}
    )
    constants = {**before.constants, **after.constants}
    return FusedGroup((producer, after.segments[0]), merged, inputs, after.outputs, (tensor,), constants)


# ---- what is legal but unwanted


def _unwanted(group: FusedGroup, policy: Policy) -> Illegal | None:
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
    if issue_slots(*segment.expressions) > policy.operations:
        return Illegal(f"the bodies have more than {policy.operations} issue slots")
    for reduction in segment.reductions:
        for part in factors(reduction.body) if reduction.combine == "sum" else (reduction.body,):
            times = _repetition(part, reduction, segment, group.tensors)
            if not isinstance(part, Read) and times > 1 and issue_slots(part) > policy.recompute:
                return Illegal(
                    f"an expression of {issue_slots(part)} issue slots would be recomputed about {times} times per "
                    f"element"
                )
    return None


def _repetition(part: Expr, reduction: Reduction, segment: Segment, tensors: Mapping[str, TensorType]) -> int:
    """Return how often a reduction evaluates a part per element of the largest tensor that the part reads."""
    points = prod(v.extent for v in (*segment.axes, *reduction.reduce))
    sizes = [tensors[r.tensor].size for r in reads(part)]
    return points // max(1, *sizes, 1)


def issue_slots(*bodies: Expr) -> int:
    """Return the issue slots of the scalar operations of expressions, shared parts counted once."""
    found: dict[Expr, int] = {}

    def visit(node: Expr) -> None:
        if node in found:
            return
        found[node] = FUNCTIONS[node.fn].issue if isinstance(node, Call) else 1 if isinstance(node, Cast) else 0
        for child in node.children:
            visit(child)

    for body in bodies:
        visit(body)
    return sum(found.values())


# ---- the box that lives in shared memory


def _box_reason(group: FusedGroup, tensor: str, policy: Policy) -> str:
    """Return why the second segment cannot read its operand from shared memory, "" where it can."""
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
    if size > policy.shared_bytes:
        return f"one element needs {size} bytes of {tensor}, shared memory has {policy.shared_bytes}"
    return ""


def box_extent(index: Index, tiles: Mapping[Var, int]) -> int:
    """Return how many neighbouring values an affine index spans when each variable covers a tile (1 where none is
    given).
    """
    return 1 + sum(abs(factor) * (tiles.get(atom, 1) - 1) for atom, factor in index.terms if isinstance(atom, Var))


def _axis_per_dim(segment: Segment, type_: TensorType) -> Segment | Illegal:
    """Order a segment's axes as the dims of the one tensor it writes,
    with an axis of extent 1 for a dim of extent 1.
    """
    (output,) = segment.outputs
    if output.extra:
        return Illegal("the first half is a row operation")
    own = {as_index(a): a for a in segment.axes}
    order: list[Var | None] = []
    for index in output.write:
        if index not in own and index.terms:
            return Illegal(f"{output.tensor} is written at an index that is not one axis")
        order.append(own.get(index) if index.terms else None)
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(type_.shape))
    values = {old: as_index(new) for old, new in zip(order, axes, strict=True) if old is not None}
    values.update({a: as_index(0) for a in segment.axes if a not in values})
    names = {r.name for r in segment.reductions}

    def move(expr: Expr) -> Expr:
        return rebuild(substitute_expr(expr, values), leaf)

    def leaf(node: Expr) -> Expr:
        held = isinstance(node, Read) and node.tensor in names
        return Read(node.tensor, tuple(as_index(a) for a in axes)) if held and isinstance(node, Read) else node

    reductions = tuple(evolve(r, body=move(r.body)) for r in segment.reductions)
    written = Output(output.tensor, tuple(substitute(w, values) for w in output.write), move(output.body))
    return Segment(axes, reductions, (written,))
