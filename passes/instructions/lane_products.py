"""Products of rows that threads share, by matrix instructions.

Reduction threads multiply numbers of their own and add up all sums at the end. A matrix instruction adds products of
four lanes, which hold a row of A and a column of B. Where both are a lane's own numbers, C has the sums of four lanes
on its diagonal:

    acc[v] += x[k] * w[v, k] over k < 4         ->      A[t // 4 + 8 * v, ..] = w[v, ..],   B[.., t // 4] = x[..]
                                                        acc[v] += C[t // 4 + 8 * v, t // 4]   in lane t with
                                                                  t % 4 = t // 8, 0 in others

So two rows of four products take one instruction in place of eight. Words of half types are operands as memory has
them, and numbers of fewer bits become two numbers of a word at once. Sums are f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve

from ...ir import (
    LANE_PRODUCTS,
    LANES,
    UNPACKED_PAIRS,
    Accumulate,
    Convert,
    DfgNode,
    DType,
    IndexLike,
    Item,
    Kernel,
    LaneProduct,
    LaneReduce,
    Loop,
    Op,
    Phase,
    RegisterRead,
    Root,
    Value,
    Var,
    VectorLoad,
    as_index,
    own_variables,
    post_order,
    substitute,
    substitute_indices,
)
from .context import SelectionContext

#: Lanes whose products an instruction adds up, and most bits of numbers of a factor: other products take few other
#: instructions, and wait for memory alone.
QUAD, HALF_BITS, MAX_BITS = 4, 16, 4
#: Numbers of a group of four threads, and of a thread among them.
_GROUP, _LANE = Var("quad", 1 << 20), Var("quad_lane", QUAD)


def shared_sums(kernel: Kernel) -> frozenset[str]:
    """Return the registers whose sums may move among four lanes.

    Reduction threads combine them before anything else reads them, or they are terms of such registers, times factors
    that four lanes have in common.
    """
    if kernel.threads % LANES or kernel.teams > 1 or kernel.producer:
        return frozenset()
    combined, others, terms = set[str](), set[str](), dict[str, set[str]]()
    for root, ends in _roots(kernel.items):
        if isinstance(root, LaneReduce):
            whole = root.combine == "sum" and root.stride == 1 and not (root.along or root.extent or root.whole)
            (combined if whole and root.threads % QUAD == 0 else others).add(root.name)
            continue
        if isinstance(root, Accumulate) and ends:
            others.add(root.name)
        for name in {n.name for n in post_order([root]) if isinstance(n, RegisterRead)} - combined:
            if isinstance(root, Accumulate) and root.combine == "sum" and _is_term(root.value, name, kernel):
                terms.setdefault(name, set()).add(root.name)
            else:
                others.add(name)
    found, more = set[str](), combined - others
    while more - found:
        found |= more
        more = {name for name, into in terms.items() if into <= found} - others - combined
    return frozenset(found)


def _roots(items: Iterable[Item], ends: bool = False) -> Iterator[tuple[Root, bool]]:
    """Yield the roots in order, each with whether not all threads compute it equally often."""
    for item in items:
        if isinstance(item, Loop):
            yield from _roots(item.body, ends or item.until is not None)
        elif isinstance(item, Phase):
            yield from ((root, ends or bool(item.when)) for root in item.roots)


def _is_term(value: Value, name: str, kernel: Kernel) -> bool:
    """Return whether a value is a register's, times factors that four lanes have in common."""
    if isinstance(value, RegisterRead):
        return value.name == name
    if not isinstance(value, Op) or value.fn != "mul":
        return False
    reading = [arg for arg in value.args if any(isinstance(n, RegisterRead) for n in post_order([arg]))]
    rest = [arg for arg in value.args if arg not in reading]
    return len(reading) == 1 and _is_term(reading[0], name, kernel) and all(_is_common(arg, kernel) for arg in rest)


def _is_common(value: Value, kernel: Kernel) -> bool:
    """Return whether four neighbouring threads have the same value."""
    places: dict[Var, IndexLike] = {Var("tid", kernel.threads): as_index(_GROUP) * QUAD + _LANE}
    for define in kernel.defines:
        places[define.var] = substitute(define.value, places)
    moved = (substitute_indices(node, places) for node in post_order([value]))
    return all(_LANE not in own_variables(node) for node in moved)


def select_lane_product(
    root: Accumulate,
    select: Callable[[Value], Value],
    boxes: Mapping[DfgNode, Sequence[Var]],
    context: SelectionContext,
) -> LaneProduct | None:
    """Return the instructions that add up products of a half type.

    `select` makes instructions of operands, `boxes` are the unrolled variables of values. None where the sums may not
    move, and where operands are no vectors along a reduced variable.
    """
    value = root.value
    if root.name not in context.sums or root.combine != "sum" or not isinstance(value, Op) or value.fn != "mul":
        return None
    factors = [arg.arg if isinstance(arg, Convert) and arg.dtype is DType.F32 else arg for arg in value.args]
    kinds = {factor.dtype for factor in factors}
    name = next((n for n, kind in LANE_PRODUCTS.items() if n in context.instructions and kinds == {kind}), "")
    loads = [load for factor in factors if name and (load := _words(select(factor), context))]
    axes, distances = {load.axis for load in loads}, {load.distance for load in loads if load.stored}
    narrow = len(loads) > 1 and any((load.bits or HALF_BITS) <= MAX_BITS for load in loads)
    if not narrow or len(axes) > 1 or axes - {*root.over} or len(distances) > 1 or loads[0].axis.extent % 2:
        return None
    own, other = (boxes[factor] for factor in factors)
    rows = [[v for v in each if v not in (*rest, *root.over)] for each, rest in ((own, other), (other, own))]
    if not rows[0]:
        loads, rows = loads[::-1], rows[::-1]
    (axis,), (distance,) = axes, distances or {1}
    return LaneProduct(name, root.name, root.at, loads[0], loads[1], axis, root.dtype, distance, tuple(rows[0][-1:]))


def _words(value: Value, context: SelectionContext) -> VectorLoad | None:
    """Return the load of a half type's numbers; those of fewer bits stay words."""
    if not isinstance(value, VectorLoad) or value.stored is None:
        return value if isinstance(value, VectorLoad) else None
    known = any(UNPACKED_PAIRS.get(name) == value.bits for name in context.instructions)
    return evolve(value, dtype=DType.U32) if known else None
