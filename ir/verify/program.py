"""The verifier of index IR: a list of named checks on programs, each stating one invariant.

A check yields every violation it finds; `verify_program` runs all of them and reports everything at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import TypeAlias

from ..errors import VerifyError, quote, raise_all
from ..expr import Call, Expr, dtype_of
from ..functions import COMBINERS, FUNCTIONS
from ..index import linearise
from ..ranges import AddressedElement, elements, injective, proven
from ..statement import Program, Statement
from ..types import DType, TensorType
from ..walk import distinct, expr_variables, variables


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


def check_nothing_reads_what_it_writes(program: Program) -> Iterator[VerifyError]:
    """No statement reads the tensor that it writes, neither as a value nor in an index: its elements have no order."""
    for number, statement in enumerate(program.statements):
        if statement.target in statement.tensors_read:
            yield VerifyError(
                f"{_words(number, statement)} reads what it writes", statement.span, "write to another tensor"
            )


def check_tensors_written_before_read(program: Program) -> Iterator[VerifyError]:
    """Every read is of an input, of a table, or of a tensor that earlier statements wrote, and that no later one
    writes.
    """
    last = {statement.target: number for number, statement in enumerate(program.statements)}
    given = {*program.inputs, *program.constants}
    for number, statement in enumerate(program.statements):
        for tensor in statement.tensors_read:
            if tensor in given or tensor == statement.target or last.get(tensor, number) < number:
                continue
            why = "before it is written" if tensor in last else "that nothing writes"
            yield VerifyError(f"{_words(number, statement)} reads {quote(tensor)} {why}", statement.span)


def check_results_written_once(program: Program) -> Iterator[VerifyError]:
    """Every element of a result or an intermediate is written once: writes are injective, and their numbers add up."""
    written: Counter[str] = Counter()
    for statement in program.statements:
        written[statement.target] += prod(axis.extent for axis in statement.axes)
    for tensor in dict.fromkeys((*written, *program.outputs)):
        type_ = program.tensors.get(tensor)
        if type_ is not None and tensor not in program.inputs and written[tensor] != type_.size:
            yield VerifyError(f"{written[tensor]} of the {type_.size} elements of {quote(tensor)} are written")


def check_writes_injective(program: Program) -> Iterator[VerifyError]:
    """Every write is in bounds, and takes different values of the axes to different elements."""
    for number, statement in enumerate(program.statements):
        type_ = program.tensors.get(statement.target)
        if type_ is None or any(axis.extent == 0 for axis in statement.axes):
            continue
        problems = list(
            misplaced(f"{_words(number, statement)} writes", type_, AddressedElement(statement.target, statement.write))
        )
        yield from problems
        if problems:
            continue
        if not injective(linearise(statement.write, type_.strides), statement.axes):
            yield VerifyError(f"{_words(number, statement)} may write an element twice", statement.span)


def check_variables_bound(program: Program) -> Iterator[VerifyError]:
    """A body mentions the statement's own variables, a write its axes, and no name means two of them."""
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
    """A statement has reduced axes exactly where it has a combiner, which is one of the table."""
    for number, statement in enumerate(program.statements):
        if bool(statement.reduce) != (statement.combine is not None):
            yield VerifyError(
                f"{_words(number, statement)}: {len(statement.reduce)} reduced axes, combiner {statement.combine}"
            )
        elif statement.combine is not None and statement.combine not in COMBINERS:
            yield VerifyError(
                f"{_words(number, statement)}: unknown combiner {quote(statement.combine)}", statement.span
            )


def check_values_typed(program: Program) -> Iterator[VerifyError]:
    """A body has the element type of its target (an integer for positions), and no function mixes the types of its
    operands.
    """
    for number, statement in enumerate(program.statements):
        if any(t not in program.tensors for t in (statement.target, *statement.tensors_read)):
            continue
        for problem in mixed_types(statement.body, program.tensors):
            yield VerifyError(f"{_words(number, statement)}: {problem}", statement.span)
        wanted, found = program.tensors[statement.target].dtype, dtype_of(statement.body, program.tensors)
        positions = statement.combine in COMBINERS and COMBINERS[statement.combine].position
        if (positions and not wanted.is_int) or (not positions and found is not wanted):
            yield VerifyError(
                f"{_words(number, statement)}: expected a value of {wanted}, found {found}", statement.span
            )


def mixed_types(expr: Expr, tensors: Mapping[str, TensorType]) -> Iterator[str]:
    """Yield what is wrong with the operands of the functions in an expression: their number, or types that differ."""
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
        types[id(node)] = DType.BOOL if function.result == "bool" else values[0]


def check_reads_in_bounds(program: Program) -> Iterator[VerifyError]:
    """Every element that is read exists: the ranges of variables prove it, or a guard of the read says it."""
    for number, statement in enumerate(program.statements):
        if any(v.extent == 0 for v in (*statement.axes, *statement.reduce)):
            continue
        for element in elements(statement.body):
            if element.tensor in program.tensors:
                yield from misplaced(
                    f"{_words(number, statement)}: {quote(element.tensor)}", program.tensors[element.tensor], element
                )


def misplaced(where: str, type_: TensorType, element: AddressedElement) -> Iterator[VerifyError]:
    """Yield what is wrong with the place of an element: the number of its indices, or one that may leave its axis."""
    if len(element.indices) != len(type_.shape):
        yield VerifyError(f"{where}: expected {len(type_.shape)} indices, found {len(element.indices)}")
        return
    for index, extent in zip(element.indices, type_.shape, strict=True):
        if not proven(index, extent, element.guards):
            yield VerifyError(f"{where}: {index.text} is not proven to be below {extent}")


Check: TypeAlias = Callable[[Program], Iterator[VerifyError]]

#: What holds for any statements over typed tensors, those of one kernel included.
STATEMENT_CHECKS: tuple[Check, ...] = (
    check_tensors_typed,
    check_given_tensors_not_written,
    check_nothing_reads_what_it_writes,
    check_tensors_written_before_read,
    check_writes_injective,
    check_variables_bound,
    check_reductions_complete,
    check_values_typed,
    check_reads_in_bounds,
)
#: What besides holds for a whole program.
CHECKS: tuple[Check, ...] = (*STATEMENT_CHECKS, check_results_written_once)


def verify_program(program: Program) -> Program:
    """Return the program if every invariant holds, else raise a `VerifyError` for each violation at once."""
    raise_all([error for check in CHECKS for error in check(program)])
    return program
