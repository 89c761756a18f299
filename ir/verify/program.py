"""Verifier of index IR: named checks on programs, each of one invariant.

A check yields every violation it finds; `verify_program` runs all of them and reports everything at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TypeAlias

from ..affine import Index, Var, indirects, is_injective, linearise, proven, variables
from ..errors import VerifyError, quote, raise_all
from ..expr import Call, Expr, dtype_of
from ..functions import ARRIVALS, COMBINERS, FUNCTIONS
from ..recurrence import Unsliceable, split_step
from ..statement import Program, Statement, runs
from ..traversal import AddressedElement, addressed_elements, distinct, expr_variables
from ..types import DType, TensorType


def _words(number: int, statement: Statement) -> str:
    return f"statement {number} (of {quote(statement.target)})"


def check_tensors_typed(program: Program) -> Iterator[VerifyError]:
    """Every tensor that is named has a type."""
    for number, statement in enumerate(program.statements):
        for tensor in (statement.target, *statement.tensors_read):
            if tensor not in program.tensors:
                yield VerifyError(f"{_words(number, statement)}: tensor {quote(tensor)} has no type", statement.span)
    for tensor in (*program.inputs, *program.outputs, *program.constants):
        if tensor not in program.tensors:
            yield VerifyError(f"tensor {quote(tensor)} has no type")


def check_given_tensors_not_written(program: Program) -> Iterator[VerifyError]:
    """No statement writes an input or a table."""
    given = {*program.inputs, *program.constants}
    for number, statement in enumerate(program.statements):
        if statement.target in given:
            yield VerifyError(f"{_words(number, statement)} writes what the program is given", statement.span)


def check_reads_and_writes_disjoint(program: Program) -> Iterator[VerifyError]:
    """No statement reads the tensor that it writes.

    This holds for values and for indices: its elements have no order but that of a step.
    """
    for number, statement in enumerate(program.statements):
        if statement.target in statement.tensors_read and statement.step is None and statement.along is None:
            yield VerifyError(
                f"{_words(number, statement)} reads what it writes", statement.span, "write to another tensor"
            )


def check_tensors_written_before_read(program: Program) -> Iterator[VerifyError]:
    """Every read is of a tensor that is complete.

    It is an input, a table, or a tensor that earlier statements wrote and no later one writes; for tensors that a
    recurrence itself writes see `check_steps_in_order`.
    """
    writers: dict[str, list[int]] = {}
    for number, statement in enumerate(program.statements):
        writers.setdefault(statement.target, []).append(number)
    ends = _ends(program)
    given = {*program.inputs, *program.constants}
    for number, statement in enumerate(program.statements):
        for element in _elements_read(statement):
            if element.tensor in given or element.tensor == statement.target:
                continue
            last = ends[number] if statement.step is not None else number
            others = writers.get(element.tensor, [])
            later = (n for n in others if n >= last and _may_overlap(program.statements[n].write, element.indices))
            if others and next(later, None) is None:
                continue
            why = "before it is written" if others else "that nothing writes"
            yield VerifyError(f"{_words(number, statement)} reads {quote(element.tensor)} {why}", statement.span)


def _elements_read(statement: Statement) -> list[AddressedElement]:
    """Return the elements that a statement reads; of several in the same rows one."""
    found = {(e.tensor, e.indices[:1]): e for e in addressed_elements(statement.body)}
    return list(found.values())


def _may_overlap(written: tuple[Index, ...], read: tuple[Index, ...]) -> bool:
    """Return whether written and read rows overlap."""
    if not written or not read:
        return True
    (low, high), (first, last) = written[0].bounds(), read[0].bounds()
    return low <= last and first <= high


def _ends(program: Program) -> list[int]:
    """Return for each statement the number after the last one of its recurrence."""
    found: list[int] = []
    for _, run in runs(program.statements):
        found += [len(found) + len(run)] * len(run)
    return found


def check_steps_are_axes(program: Program) -> Iterator[VerifyError]:
    """A step is an axis of its statement.

    One recurrence has a step of its own.
    """
    seen: set[Var] = set()
    for step, run in runs(program.statements):
        if step is not None and step in seen:
            yield VerifyError(f"two recurrences have the step {quote(step.name)}", run[0].span)
        seen |= {step} if step is not None else set()
        for statement in run:
            if step is not None and step not in statement.axes:
                yield VerifyError(f"step {quote(step.name)} is no axis of {quote(statement.target)}", statement.span)


def check_steps_in_order(program: Program) -> Iterator[VerifyError]:
    """A step of a recurrence reads only elements that are written.

    They are written at an earlier step, or by an earlier statement of the same step; the first steps may read elements
    written before the recurrence.
    """
    number = 0
    for step, run in runs(program.statements):
        for place, statement in enumerate(run):
            for element in addressed_elements(statement.body) if step is not None else ():
                for writer, source in enumerate(run):
                    if source.target != element.tensor or step is None:
                        continue
                    if not _in_order(source, element.indices, step, writer < place):
                        yield VerifyError(
                            f"{_words(number + place, statement)} reads {quote(element.tensor)} before its turn",
                            statement.span,
                        )
        number += len(run)


def _in_order(source: Statement, indices: tuple[Index, ...], step: Var, before: bool) -> bool:
    """Return whether an element read at a step is written at an earlier one, at the same one `before`, or never."""
    for written, index in zip(source.write, indices, strict=True):
        try:
            (factor, at), (others, place) = split_step(written, step), split_step(index, step)
        except Unsliceable:
            continue
        distance = at - place
        if factor != others or not distance.is_const:
            continue
        turns, rest = divmod(distance.const, factor) if factor else (0, distance.const)
        if rest or turns > 0 or (factor and turns == 0 and before):
            return True
    return False


def check_results_written_once(program: Program) -> Iterator[VerifyError]:
    """Every element of a result or an intermediate is written once.

    Writes are injective, and their numbers add up.
    """
    written: Counter[str] = Counter()
    for statement in program.statements:
        if not statement.into:
            written[statement.target] += prod(axis.extent for axis in statement.axes)
    for statement in program.statements:
        if statement.into and not written[statement.target] and statement.target in program.tensors:
            written[statement.target] = program.tensors[statement.target].size
    for tensor in dict.fromkeys((*written, *program.outputs)):
        type_ = program.tensors.get(tensor)
        if type_ is not None and tensor not in program.inputs and written[tensor] != type_.size:
            yield VerifyError(f"{written[tensor]} of the {type_.size} elements of {quote(tensor)} are written")


def check_writes_injective(program: Program) -> Iterator[VerifyError]:
    """Every write is in bounds and injective, or combines its values.

    Only combined values may have their place in data.
    """
    for number, statement in enumerate(program.statements):
        type_ = program.tensors.get(statement.target)
        if type_ is None or any(axis.extent == 0 for axis in statement.axes):
            continue
        problems = list(
            bounds_problems(
                f"{_words(number, statement)} writes",
                type_,
                AddressedElement(statement.target, statement.write, statement.arrival_guards(type_.shape)),
            )
        )
        yield from problems
        if problems or statement.into:
            continue
        if any(indirects(index) for index in statement.write):
            yield VerifyError(f"{_words(number, statement)} writes where data says", statement.span)
        elif not is_injective(linearise(statement.write, type_.strides), statement.axes):
            yield VerifyError(f"{_words(number, statement)} may write an element twice", statement.span)


def check_variables_bound(program: Program) -> Iterator[VerifyError]:
    """A body mentions its statement's variables, a write its axes.

    No name means two of them.
    """
    for number, statement in enumerate(program.statements):
        own = (*statement.axes, *statement.reduce)
        loose = {v for v in expr_variables(statement.body) - set(own) if v.extent > 1}
        loose |= {v for index in statement.write for v in variables(index) - set(statement.axes)}
        if loose:
            yield VerifyError(
                f"{_words(number, statement)}: nothing binds {', '.join(sorted(v.name for v in loose))}", statement.span
            )
        if len({v.name for v in own}) != len(own):
            yield VerifyError(f"{_words(number, statement)}: two variables share a name", statement.span)


def check_reductions_complete(program: Program) -> Iterator[VerifyError]:
    """A statement has reduced axes exactly where it has a known combiner.

    Arriving values are combined by a reduction of values, and are no reduction themselves.
    """
    for number, statement in enumerate(program.statements):
        if bool(statement.reduce) != (statement.combine is not None):
            yield VerifyError(
                f"{_words(number, statement)}: {len(statement.reduce)} reduced axes, combiner {statement.combine}"
            )
        elif statement.into is not None and (statement.combine or statement.into not in ARRIVALS):
            yield VerifyError(f"{_words(number, statement)}: {quote(statement.into)} of what arrives", statement.span)
        elif statement.combine is not None and statement.combine not in COMBINERS:
            yield VerifyError(
                f"{_words(number, statement)}: unknown combiner {quote(statement.combine)}", statement.span
            )


def check_values_typed(program: Program) -> Iterator[VerifyError]:
    """A body has the element type of its target.

    Positions are integers, and no function mixes the types of its operands.
    """
    for number, statement in enumerate(program.statements):
        if any(t not in program.tensors for t in (statement.target, *statement.tensors_read)):
            continue
        for problem in mixed_types(statement.body, program.tensors):
            yield VerifyError(f"{_words(number, statement)}: {problem}", statement.span)
        wanted, found = program.tensors[statement.target].dtype, dtype_of(statement.body, program.tensors)
        positions = statement.combine in COMBINERS and COMBINERS[statement.combine].position
        if statement.combine in COMBINERS and COMBINERS[statement.combine].floats and not found.is_float:
            yield VerifyError(
                f"{_words(number, statement)}: {statement.combine} is of floats, found {found}", statement.span
            )
        if (positions and not wanted.is_int) or (not positions and found is not wanted):
            yield VerifyError(
                f"{_words(number, statement)}: expected a value of {wanted}, found {found}", statement.span
            )


def mixed_types(expr: Expr, tensors: Mapping[str, TensorType]) -> Iterator[str]:
    """Yield faulty operands of functions in an expression.

    Faults are their number, or types that differ.
    """
    types: dict[int, DType] = {}
    for node in distinct(expr):
        if not isinstance(node, Call):
            types[id(node)] = dtype_of(node, tensors)
            continue
        function = FUNCTIONS[node.fn]
        operands = [types[id(a)] for a in node.args]
        if len(operands) != function.arity:
            yield f"{node.fn} takes {function.arity} operands, found {len(operands)}"
        values = operands[1:] if node.fn == "select" else operands
        if len(set(values)) > 1 or (node.fn == "select" and operands[0] is not DType.BOOL):
            yield f"{node.fn} of {', '.join(d.value for d in operands)}"
        if not function.takes(values[0]):
            yield f"{node.fn} of {values[0].value}, a function of {function.domain}"
        types[id(node)] = function.result_type(values[0])


def check_reads_in_bounds(program: Program) -> Iterator[VerifyError]:
    """Every element that is read exists.

    The ranges of variables prove it, or a guard of the read.
    """
    for number, statement in enumerate(program.statements):
        if any(v.extent == 0 for v in (*statement.axes, *statement.reduce)):
            continue
        for element in addressed_elements(statement.body):
            if element.tensor in program.tensors:
                yield from bounds_problems(
                    f"{_words(number, statement)}: {quote(element.tensor)}", program.tensors[element.tensor], element
                )


def bounds_problems(where: str, type_: TensorType, element: AddressedElement) -> Iterator[VerifyError]:
    """Yield the faults of an element's place.

    Faults are the number of its indices, or an index that may leave its axis.
    """
    if len(element.indices) != len(type_.shape):
        yield VerifyError(f"{where}: expected {len(type_.shape)} indices, found {len(element.indices)}")
        return
    for index, extent in zip(element.indices, type_.shape, strict=True):
        if not proven(index, extent, element.guards):
            yield VerifyError(f"{where}: {index.text} is not proven to be below {extent}")


Check: TypeAlias = Callable[[Program], Iterator[VerifyError]]

#: Checks of any statements over typed tensors, those of one kernel included.
STATEMENT_CHECKS: tuple[Check, ...] = (
    check_tensors_typed,
    check_given_tensors_not_written,
    check_reads_and_writes_disjoint,
    check_tensors_written_before_read,
    check_steps_are_axes,
    check_steps_in_order,
    check_writes_injective,
    check_variables_bound,
    check_reductions_complete,
    check_values_typed,
    check_reads_in_bounds,
)
#: Checks of a whole program.
CHECKS: tuple[Check, ...] = (*STATEMENT_CHECKS, check_results_written_once)


def verify_program(program: Program) -> Program:
    """Return a valid program, else raise a `VerifyError` for each violation."""
    raise_all([error for check in CHECKS for error in check(program)])
    return program
