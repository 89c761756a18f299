"""Schedule templates with matrix instructions, derived from the classes of axes.

A segment has them where it computes one sum of products of two factors in types that an instruction of the target
multiplies, where two of its runs of axes index one factor each (the rows and the columns), and where everything else is
a batch, with one element per block. Either run may be the rows: an instruction has more rows than columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from math import prod

from attrs import evolve

from ...ir import (
    ACCUMULATOR_THREADS,
    HALF_BYTES,
    MATH_MODES,
    MIN_COPY_BYTES,
    MMA_INSTRUCTIONS,
    WIDEST_BYTES,
    FusedGroup,
    Indirect,
    MmaInstruction,
    Read,
    Reduction,
    Segment,
    Target,
    Var,
    block_scales,
    dtype_of,
    factors,
    linearise,
    reads,
    stored_factor,
    variables,
)
from ..geometry import (
    SegmentTemplate,
    axis_classes,
    class_runs,
    is_held,
    lies_deep,
    mma_operands,
    reads_shared_matrices,
)
from ..model import running_axis
from .bulk_copy_parameters import suits_bulk_copies
from .mma_parameters import block_depths

#: Least rows and columns of a product for instructions of a warpgroup, which multiply 64 rows; and where every SM has
#: rows of its own, so that memory has to keep busy, not tensor cores.
MIN_SIDES, MIN_SIDES_OF_MANY_ROWS = (48, 32), (48, 16)


def mma_templates(group: FusedGroup, segment: Segment, target: Target) -> Iterator[SegmentTemplate]:
    """Yield a segment's templates, for every suitable matrix instruction."""
    if len(segment.reductions) != 1 or segment.holds_rows or any(o.extra for o in segment.outputs):
        return
    kinds = dict(zip(segment.axes, axis_classes(segment), strict=True))
    for dims in dict.fromkeys((class_runs(segment), _whole_classes(segment, kinds))):
        for rows, columns in permutations(range(len(dims)), 2):
            yield from _structures(group, segment, target, dims, rows, columns, kinds)


def is_mma_computable(group: FusedGroup, target: Target) -> bool:
    """Return whether matrix instructions may compute a one-segment group."""
    (segment, *others) = group.segments
    return not others and next(mma_templates(group, segment, target), None) is not None


def _whole_classes(segment: Segment, kinds: dict[Var, frozenset[int]]) -> tuple[tuple[Var, ...], ...]:
    """Return all axes of a class that indexes one factor as one dim, in any position, and each other axis as a dim of
    its own.

    The pixels of all images are then one run, though channels stand between them.
    """
    found: dict[frozenset[int] | Var, tuple[Var, ...]] = {}
    for axis, kind in kinds.items():
        key = kind if len(kind) == 1 else axis
        found[key] = (*found.get(key, ()), axis)
    return tuple(found.values())


def _structures(
    group: FusedGroup,
    segment: Segment,
    target: Target,
    dims: tuple[tuple[Var, ...], ...],
    rows: int,
    columns: int,
    kinds: dict[Var, frozenset[int]],
) -> Iterator[SegmentTemplate]:
    (reduction,) = segment.reductions
    operands = mma_operands(reduction, dims[rows], dims[columns])
    single = target.invariant and _has_single_side(dims, rows, columns, kinds)
    if not (single or _are_matrix_sides(dims, rows, columns, kinds)) or operands is None:
        return
    stored = tuple(dtype_of(factor, group.tensors) for factor in operands)
    for name in worthwhile_instructions(reduction, group, target):
        if MMA_INSTRUCTIONS[name].other is not None and stored != MMA_INSTRUCTIONS[name].operand_dtypes:
            continue
        found = SegmentTemplate(dims, (reduction.reduce,), ((0,),), ((0, 1),), mma=name, rows=rows, columns=columns)
        if reads_shared_matrices(name) and not _suits_warpgroup(group, segment, found, target):
            continue
        in_place = reads_shared_matrices(name)
        bulk = in_place and suits_bulk_copies(group, segment, found, block_depths(found, reduction))
        if in_place and MMA_INSTRUCTIONS[name].held.size == HALF_BYTES and _writes_along_rows(segment, found):
            other = evolve(found, rows=columns, columns=rows)
            better = not _reads_windows(reduction) and _suits_warpgroup(group, segment, other, target)
            if not bulk or (better and suits_bulk_copies(group, segment, other, block_depths(other, reduction))):
                continue
        yield evolve(found, bulk=bulk)


def worthwhile_instructions(reduction: Reduction, group: FusedGroup, target: Target) -> Iterator[str]:
    """Yield the instructions of a target that multiply a reduction.

    Those are left out where a deeper one of the same rows and columns takes no more clocks for the whole depth.
    """
    depth = prod(v.extent for v in reduction.reduce)
    able = [
        (atom, clocks) for name, clocks in target.atoms if multiplies(atom := MMA_INSTRUCTIONS[name], reduction, group)
    ]
    clocks_of = {atom: clocks * -(-depth // atom.k) for atom, clocks in able}
    for atom, clocks in clocks_of.items():
        deeper = [other for other in clocks_of if (other.m, other.n) == (atom.m, atom.n) and other.k > atom.k]
        if all(clocks_of[other] > clocks for other in deeper):
            yield atom.name


def _suits_warpgroup(group: FusedGroup, segment: Segment, template: SegmentTemplate, target: Target) -> bool:
    """Return whether a warpgroup may read the factors of a reduction in shared memory, and has work.

    Rows and columns fill most of an instruction. Results do not lie along rows in shared memory, where a thread has no
    neighbours, unless halves along the depth give it pairs, or eight lanes store a whole sector. Any factor of halves
    is staged: copies move as many bytes at once as its address allows, and values of an expression are stored by the
    threads that compute them. Accesses of 16 bytes move other factors: neighbours in memory are neighbours along the
    depth or along the side, bytes along the depth. Parts of a math mode are staged, rounded on the way.
    """
    (reduction,), atom = segment.reductions, MMA_INSTRUCTIONS[template.mma]
    dims, rows, columns = template.dims, template.rows, template.columns
    found = mma_operands(reduction, dims[rows], dims[columns])
    held = found is not None and is_held(found[0], reduction, template) and not lies_deep(found[0], reduction)
    paired = found is not None and atom.held.size == HALF_BYTES and lies_deep(found[0], reduction)
    sectors = all(
        ACCUMULATOR_THREADS[0] * group.tensors[o.tensor].dtype.size >= target.sector_bytes for o in segment.outputs
    )
    if not held and not paired and not sectors and _writes_along_rows(segment, template):
        return False
    if reduction.math and len(MATH_MODES[reduction.math].parts) > 1 and len(group.segments) > 1:
        return False
    extents = [prod(a.extent for a in dims[d]) for d in (rows, columns)]
    sides = MIN_SIDES if extents[0] < atom.m * target.NUM_SM else MIN_SIDES_OF_MANY_ROWS
    if found is None or any(extent < least for extent, least in zip(extents, sides, strict=True)):
        return False
    if atom.held.size == HALF_BYTES:
        return True
    for factor, d in zip(found, (rows, columns), strict=True):
        if not isinstance(factor, Read) or (axis := running_axis(factor)[0]) not in (reduction.reduce[-1], dims[d][-1]):
            return False
        if atom.held.size == 1 and axis != reduction.reduce[-1]:
            return False
        kind = group.tensors[factor.tensor]
        unit = MIN_COPY_BYTES if atom.held.size == 1 else WIDEST_BYTES // kind.dtype.size
        address = linearise(factor.indices, kind.strides)
        steps = [step for primary, step in address.terms if primary != axis]
        if axis is None or any(n % unit for n in (axis.extent, address.const, *steps)):
            return False
    return True


def _reads_windows(reduction: Reduction) -> bool:
    """Return whether a factor is read through windows, whose places are often too few to fill all tiles of one form.

    A place that data say is the begin of a run, and no window.
    """
    indices = (index for read in reads(reduction.body) for index in read.indices)
    return any(sum(not isinstance(place, Indirect) for place, _ in index.terms) > 1 for index in indices)


def _writes_along_rows(segment: Segment, template: SegmentTemplate) -> bool:
    """Return whether neighbours in a result are neighbours along the rows."""
    return any(o.write and template.dims[template.rows][-1] in variables(o.write[-1]) for o in segment.outputs)


def _has_single_side(
    runs: tuple[tuple[Var, ...], ...], rows: int, columns: int, kinds: dict[Var, frozenset[int]]
) -> bool:
    """Return whether one of two runs is the first of one element, and the other one the longest of its class."""
    single = [d for d, run in enumerate(runs) if all(axis.extent == 1 for axis in run)][:1]
    others = [d for d in (rows, columns) if d not in single]
    return len(others) == 1 and _is_longest(runs, others[0], kinds)


def _is_longest(runs: tuple[tuple[Var, ...], ...], d: int, kinds: dict[Var, frozenset[int]]) -> bool:
    """Return whether a run of several elements has a class of one operand, and is the longest of it."""
    kind, sizes = kinds[runs[d][-1]], [prod(a.extent for a in run) for run in runs]
    same = [size for run, size in zip(runs, sizes, strict=True) if kinds[run[-1]] == kind]
    return len(kind) == 1 and sizes[d] == max(same) > 1


def _are_matrix_sides(
    runs: tuple[tuple[Var, ...], ...], rows: int, columns: int, kinds: dict[Var, frozenset[int]]
) -> bool:
    """Return whether two runs have a class of one operand each, and are the longest of their class."""
    different = kinds[runs[rows][-1]] != kinds[runs[columns][-1]]
    return different and all(_is_longest(runs, d, kinds) for d in (rows, columns))


def multiplies(atom: MmaInstruction, reduction: Reduction, group: FusedGroup) -> bool:
    """Return whether an instruction computes a reduction.

    It has the reduction's math mode, or its stored types.
    """
    if group.tensors[reduction.name].dtype is not atom.accumulator:
        return False
    scales, _ = block_scales(reduction.body, reduction.reduce)
    parts = tuple(part for part in factors(reduction.body) if part not in scales)
    # Bytes are stored narrow and converted where they are used; a float with a conversion is meant to be wide.
    stored = tuple(map(stored_factor, parts)) if atom.held.size == 1 else parts
    held = {dtype_of(part, group.tensors) for part in stored}
    if reduction.math:
        return MATH_MODES[reduction.math].format == atom.format and held == {atom.held}
    return atom.format == atom.held.value and held == {*atom.operand_dtypes}
