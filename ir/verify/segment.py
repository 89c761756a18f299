"""Verifier of fusion groups in normal form: named checks of invariants.

A check yields every violation it finds; `verify_group` runs all of them and reports everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from ..affine import Index, Var, as_index, indirects, is_injective, linearise, variables
from ..errors import VerifyError, quote, raise_all
from ..expr import dtype_of
from ..functions import APPEND, VALUE_COMBINERS
from ..segment import SCAN_MODES, SORT_ORDERS, FusedGroup, Output, Reduction, Segment
from ..traversal import AddressedElement, addressed_elements, expr_indirects, expr_variables, reads, tensors_read
from ..types import DType
from .program import bounds_problems, mixed_types

Part: TypeAlias = Reduction | Output


def _named_parts(group: FusedGroup) -> Iterator[tuple[str, Segment, Part]]:
    """Yield every reduction and output with its segment and the words for it, in the order of computation."""
    for number, segment in enumerate(group.segments):
        parts: tuple[Part, ...] = (*segment.reductions, *segment.outputs)
        for part in parts:
            what = "reduction" if isinstance(part, Reduction) else "output"
            yield f"segment {number}, {what} {quote(_name(part))}", segment, part


def _name(part: Part) -> str:
    return part.name if isinstance(part, Reduction) else part.tensor


def _rows(part: Part) -> tuple[Var, ...]:
    return part.reduce if isinstance(part, Reduction) else part.extra


def check_tensors_typed(group: FusedGroup) -> Iterator[VerifyError]:
    """Every tensor and every value of a reduction has a type."""
    for where, _, part in _named_parts(group):
        for tensor in (_name(part), *tensors_read(part.body)):
            if tensor not in group.tensors:
                yield VerifyError(f"{where}: {quote(tensor)} has no type")


def check_reads_have_sources(group: FusedGroup) -> Iterator[VerifyError]:
    """Every read has a source.

    Sources are inputs, tables, earlier reductions of the segment, and shared tensors of earlier segments. Only a
    recurrence reads its own result. Tensors in indices lie in global memory, or are values in registers.
    """
    given = {*group.inputs, *group.constants}
    for number, segment in enumerate(group.segments):
        earlier = {o.tensor for s in group.segments[:number] for o in s.outputs} & set(group.shared)
        known = given | earlier
        parts: tuple[Part, ...] = (*segment.reductions, *segment.outputs)
        for part in parts:
            where = f"segment {number}, {quote(_name(part))}"
            values = {r.name for r in segment.reductions if isinstance(part, Output)}
            own = {part.name} if isinstance(part, Reduction) and part.along in SCAN_MODES else set[str]()
            for tensor in (t for t in tensors_read(part.body) if t not in known | own):
                yield VerifyError(f"{where} reads {quote(tensor)}, which nothing before it computes")
            written = [i for index in _write_indices(part) for i in indirects(index)]
            for indirect in (i for i in (*expr_indirects(part.body), *written) if i.tensor not in given | values):
                yield VerifyError(f"{where}: an index reads {quote(indirect.tensor)}, which is not in global memory")
            if isinstance(part, Reduction):
                known = known | {part.name}


def check_writes_have_places(group: FusedGroup) -> Iterator[VerifyError]:
    """Outputs of segments are outputs of the group or shared.

    All of these are written, and none is an input too.
    """
    written = {o.tensor for s in group.segments for o in s.outputs}
    wanted = {*group.outputs, *group.shared}
    for tensor in sorted(written ^ wanted):
        yield VerifyError(f"{quote(tensor)} is {'written for no reader' if tensor in written else 'never written'}")
    for tensor in sorted(wanted & {*group.inputs, *group.constants}):
        yield VerifyError(f"{quote(tensor)} is both read and written")


def check_values_read_in_place(group: FusedGroup) -> Iterator[VerifyError]:
    """A reduction's value is read by its own instance, without guards.

    It is read at the segment's axes, and a value along the row at the row's own axis.
    """
    for where, segment, part in _named_parts(group):
        own = {r.name: r for r in segment.reductions}
        for read in (r for r in reads(part.body) if r.tensor in own):
            reduction = own[read.tensor]
            place = tuple(map(as_index, (*segment.axes, *(reduction.reduce if reduction.along else ()))))
            if read.indices != place or read.guards:
                yield VerifyError(f"{where} reads {quote(read.tensor)} of another instance")


def check_variables_bound(group: FusedGroup) -> Iterator[VerifyError]:
    """Bodies and writes mention the parallel axes and their own row.

    No name means two variables of a part.
    """
    for where, segment, part in _named_parts(group):
        own = {*segment.axes, *_rows(part)}
        used = set(expr_variables(part.body))
        for index in _write_indices(part):
            used |= variables(index)
        if loose := {v.name for v in used - own if v.extent > 1}:
            yield VerifyError(f"{where}: nothing binds {', '.join(sorted(loose))}")
        if len({v.name for v in own}) != len(segment.axes) + len(_rows(part)):
            yield VerifyError(f"{where}: two variables share a name")


def _write_indices(part: Part) -> Iterable[Index]:
    return (*part.write, *(g.index for g in part.guards)) if isinstance(part, Output) else ()


def check_combiners_known(group: FusedGroup) -> Iterator[VerifyError]:
    """A reduction repeats a function of two values over some axis.

    So does a combination in memory.
    """
    for where, _, part in _named_parts(group):
        if isinstance(part, Output) and part.into is not None and part.into not in {*VALUE_COMBINERS, APPEND}:
            yield VerifyError(f"{where}: {quote(part.into)} is no reduction of values")
        if isinstance(part, Output) and part.across is not None and part.across not in VALUE_COMBINERS:
            yield VerifyError(f"{where}: {quote(part.across)} across instances is no reduction of values")
        if isinstance(part, Reduction) and (part.combine not in VALUE_COMBINERS or not part.reduce):
            yield VerifyError(f"{where}: {quote(part.combine)} over {len(part.reduce)} axes is no reduction")
        if (
            isinstance(part, Reduction)
            and part.along
            and (part.along not in {**SCAN_MODES, **SORT_ORDERS} or len(part.reduce) != 1)
        ):
            yield VerifyError(f"{where}: {quote(part.along)} along {len(part.reduce)} axes is no row of values")


def check_values_typed(group: FusedGroup) -> Iterator[VerifyError]:
    """A body has its target's element type, or its accumulator's.

    No function mixes types.
    """
    for where, _, part in _named_parts(group):
        if any(t not in group.tensors for t in (_name(part), *tensors_read(part.body))):
            continue
        for problem in mixed_types(part.body, group.tensors):
            yield VerifyError(f"{where}: {problem}")
        wanted, found = group.tensors[_name(part)].dtype, dtype_of(part.body, group.tensors)
        if isinstance(part, Reduction) and part.along in SORT_ORDERS:
            found = wanted if wanted in (DType.I32, DType.I64) else DType.I64  # a place in the row, for any values
        held = isinstance(part, Reduction) and found.accumulator is wanted
        summed = isinstance(part, Output) and part.across and wanted.accumulator is found.accumulator
        if found is not wanted and not held and not summed:
            yield VerifyError(f"{where}: expected a value of {wanted}, found {found}")


def check_writes_injective(group: FusedGroup) -> Iterator[VerifyError]:
    """Different instances and rows write different elements, or combine them.

    All of these elements exist where the guards of the output hold. A write through a reshape consists of divisions;
    its flat address shows its injectivity.
    """
    for where, segment, part in _named_parts(group):
        if not isinstance(part, Output) or part.tensor not in group.tensors:
            continue
        type_ = group.tensors[part.tensor]
        problems = list(bounds_problems(where, type_, AddressedElement(part.tensor, part.write, part.guards)))
        yield from problems
        if problems or part.guards or part.into or part.across:
            continue
        if not is_injective(linearise(part.write, type_.strides), (*segment.axes, *part.extra)):
            yield VerifyError(f"{where} may write an element twice")


def check_reads_in_bounds(group: FusedGroup) -> Iterator[VerifyError]:
    """Every element that is read exists.

    The ranges of variables prove it, or the guards of the read, or those of its output.
    """
    for where, segment, part in _named_parts(group):
        own = {r.name for r in segment.reductions}
        outer = part.guards if isinstance(part, Output) else ()
        for element in addressed_elements(part.body):
            if element.tensor in group.tensors and element.tensor not in own:
                guarded = AddressedElement(element.tensor, element.indices, (*element.guards, *outer))
                yield from bounds_problems(f"{where}: {quote(element.tensor)}", group.tensors[element.tensor], guarded)


Check: TypeAlias = Callable[[FusedGroup], Iterator[VerifyError]]

CHECKS: tuple[Check, ...] = (
    check_tensors_typed,
    check_reads_have_sources,
    check_writes_have_places,
    check_values_read_in_place,
    check_variables_bound,
    check_combiners_known,
    check_values_typed,
    check_writes_injective,
    check_reads_in_bounds,
)


def verify_group(group: FusedGroup) -> FusedGroup:
    """Return a valid group, else raise a `VerifyError` for each violation."""
    raise_all([error for check in CHECKS for error in check(group)])
    return group
