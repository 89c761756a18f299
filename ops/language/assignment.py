"""Assignments: from `target[subscripts] = value` to statements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from attrs import evolve

from ...ir import (
    COMBINERS,
    ONE_ARRIVAL,
    Const,
    CutsError,
    Index,
    Indirect,
    Read,
    SpecError,
    Statement,
    Var,
    as_index,
    indirects,
    reads,
)
from .canonical import unused_name
from .checks import names_read, reads_itself, reads_unwritten
from .evaluation import ExpressionEvaluator, Located, TensorList, TensorRef, Value, describe, to_expr
from .recurrence import MAX_UNROLLED_ASSIGNMENTS, NotALoop, as_loop, as_rows, check_rows, with_own_rows
from .text import syntax as s
from .unroll import separate_rows
from .write_checks import check_injective, check_places, data_index_error, write_axes

#: Most iterations at each end of a loop that are peeled because they differ.
MAX_PEELED_ITERATIONS = 2


def assign(evaluator: ExpressionEvaluator, item: s.Assignment | s.Repetition) -> None:
    """Emit the statements of an assignment, or of a repeated block.

    A block is emitted for each value of its variable, or once as a loop.

    Raises `NotALoop` where loops were requested and it is none.
    """
    if item.each is None:
        assert isinstance(item, s.Assignment), "a block has a variable"
        _assign(evaluator, item)
    elif evaluator.looping and evaluator.step is None and _may_loop(evaluator, item):
        _loop(evaluator, item.each, _block(item))
    else:
        _turns(evaluator, item.each, _block(item), evaluator.turns(item.each.bound))


def assign_all(evaluator: ExpressionEvaluator, items: Sequence[s.Assignment | s.Repetition]) -> None:
    """Emit the statements of all assignments.

    Repetitions become loops where these are long, and legal.

    Repetitions without a loop are unrolled, all of them, so that each of a list of tensors has a name of its own.
    """
    before = evaluator.mark()
    if any(_is_long(evaluator, item) for item in items):
        evaluator.looping = True
        try:
            for item in items:
                assign(evaluator, item)
            _lists_as_rows(evaluator)
            return
        except (NotALoop, CutsError) as reason:
            evaluator.no_loop = reason.message if isinstance(reason, CutsError) else str(reason)
            evaluator.restore(before)
            evaluator.looping = False
    for item in items:
        assign(evaluator, item)
    if evaluator.wholes:
        _named_rows(evaluator, items[0])


def _lists_as_rows(evaluator: ExpressionEvaluator) -> None:
    """Make all of a list of tensors rows of one where an index named some of them."""
    wholes = evaluator.wholes
    items = {ref.name: key for key, ref in evaluator.numbered.items() if key[0] in wholes}
    evaluator.statements[:] = as_rows(evaluator.statements, items, wholes)
    for name in items:
        del evaluator.tensors[name]
    check_rows(evaluator.statements, wholes)
    evaluator.statements[:] = with_own_rows(evaluator.statements, wholes, evaluator.tensors)


def _named_rows(evaluator: ExpressionEvaluator, item: s.Assignment | s.Repetition) -> None:
    """Restore the name of each of a list of tensors without a loop; tensors that an index names become copies."""
    try:
        _lists_as_rows(evaluator)
    except NotALoop as reason:
        raise SpecError(str(reason), item.span) from reason
    evaluator.statements[:] = separate_rows(evaluator.statements, evaluator.wholes, evaluator.tensors)


def _block(item: s.Assignment | s.Repetition) -> tuple[s.Assignment | s.Repetition, ...]:
    return item.items if isinstance(item, s.Repetition) else (evolve(item, each=None),)


def _turns(
    evaluator: ExpressionEvaluator, each: s.Binder, block: Sequence[s.Assignment | s.Repetition], numbers: range
) -> None:
    for number in numbers:
        for inner in block:
            evaluator.scope[each.name] = number
            assign(evaluator, inner)
    evaluator.scope.pop(each.name, None)


def _loop(evaluator: ExpressionEvaluator, each: s.Binder, block: Sequence[s.Assignment | s.Repetition]) -> None:
    """Emit the statements of all iterations at once. Some iterations at either end may differ from the others, as
    where a condition tests for it, and are peeled.
    """
    count, reason = evaluator.size(each.bound), ""
    for first, last in sorted(product(range(MAX_PEELED_ITERATIONS + 1), repeat=2), key=sum):
        before, scope = evaluator.mark(), dict(evaluator.scope)
        if count - first - last < 2:
            continue
        try:
            _turns(evaluator, each, block, range(first))
            _emit_iterations(evaluator, each, block, first, count - first - last)
            _turns(evaluator, each, block, range(count - last, count))
            return
        except (NotALoop, CutsError) as error:
            reason = reason or (error.message if isinstance(error, CutsError) else str(error))
            evaluator.restore(before)
            _forget_names(evaluator, scope)
    raise NotALoop(reason or "it has one turn")


def _emit_iterations(
    evaluator: ExpressionEvaluator,
    each: s.Binder,
    block: Sequence[s.Assignment | s.Repetition],
    first: int,
    count: int,
) -> None:
    """Emit the statements of a block for `count` iterations from `first` on."""
    start = len(evaluator.statements)
    evaluator.step = Var(unused_name(each.name, {v.name for s in evaluator.statements for v in s.axes}), count)
    for inner in block:
        evaluator.scope[each.name] = as_index(evaluator.step) + first
        assign(evaluator, inner)
    evaluator.scope.pop(each.name, None)
    declared = {ref.name for ref in evaluator.scope.values() if isinstance(ref, TensorRef)}
    made = evaluator.statements[start:]
    evaluator.statements[start:] = as_loop(made, evaluator.step, evaluator.tensors, evaluator.fresh_tensor, declared)
    evaluator.step = None


def _is_long(evaluator: ExpressionEvaluator, item: s.Assignment | s.Repetition) -> bool:
    """Return whether a repetition, unrolled, is more than a few statements."""
    if item.each is None:
        return False
    count = evaluator.size(item.each.bound)
    if evaluator.is_too_long(count):
        return True
    return count * _assignments(item) > MAX_UNROLLED_ASSIGNMENTS and _may_loop(evaluator, item)


def _assignments(item: s.Assignment | s.Repetition) -> int:
    return sum(map(_assignments, item.items)) if isinstance(item, s.Repetition) else 1


def _may_loop(evaluator: ExpressionEvaluator, item: s.Assignment | s.Repetition) -> bool:
    """Return whether a repetition names some of a list of tensors by its variable, or is too long to be unrolled."""
    assert item.each is not None, "a repetition has a variable"
    return evaluator.is_too_long(evaluator.size(item.each.bound)) or any(
        isinstance(evaluator.scope.get(name), TensorList) for name in _names(item)
    )


def _names(item: s.Assignment | s.Repetition) -> Iterator[str]:
    if isinstance(item, s.Repetition):
        for inner in item.items:
            yield from _names(inner)
    else:
        yield item.target.name
        yield from (name.id for name in names_read(item.value))


def _assign(evaluator: ExpressionEvaluator, item: s.Assignment) -> None:
    outer = dict(evaluator.scope)
    step = evaluator.step
    evaluator.variables, evaluator.taken = ([], set()) if step is None else ([step], {step.name})
    for binder in item.binders:
        evaluator.bind(binder)
    target, brackets = _target(evaluator, item.target)
    evaluator.target = target
    evaluator.position = write = _write(evaluator, target, brackets, item)
    write = write if target.row is None else (target.row, *write)
    moving = [v for v in evaluator.variables if v.extent != 1]
    axes = tuple(moving) if item.into else write_axes(write)
    check_places(target, write, item)
    check_injective(target, write, moving, item)
    evaluator.variables = list(axes)
    if target.type.size and any(v.extent == 0 for v in axes):
        evaluator.unwritten.discard(target.name)
        if item.into:
            evaluator.statements.append(_nothing(target, item))
        _forget_names(evaluator, outer)  # a piece of no elements
        return
    first = len(evaluator.statements)
    with Located(item.value.span):
        body = to_expr(evaluator.element(item.value), target.type.dtype)
    found = evaluator.arithmetic.dtype(body)
    if found is not target.type.dtype:
        raise SpecError(
            f"'{target.name}' has element type {target.type.dtype}, the value {found}", item.value.span, "convert it"
        )
    evaluator.statements.append(
        Statement(target.name, axes, write, body, into=item.into, atomic=item.atomic, step=step, span=item.span)
    )
    _merge(evaluator, first)
    _check_order(evaluator, target, evaluator.statements[first:], item)
    _forget_names(evaluator, outer)


def _check_order(
    evaluator: ExpressionEvaluator, target: TensorRef, added: Sequence[Statement], item: s.Assignment
) -> None:
    """Check that all reads of an assignment are written by earlier ones, completely; of lists of tensors the order is
    first known here.
    """
    read = dict.fromkeys(tensor for statement in added for tensor in statement.tensors_read)
    if target.name in read and target.row is None:
        raise reads_itself(target.name, item.value.span)
    for tensor in read:
        if tensor in evaluator.unwritten and evaluator.tensors[tensor].size:
            raise reads_unwritten(tensor, item.value.span)
    if target.name in evaluator.looked_at and target.row is None:
        raise SpecError(
            f"'{target.name}' is read before this part of it is written", item.target.span, "write all of it first"
        )
    evaluator.looked_at.update(read)
    evaluator.unwritten.discard(target.name)


def _forget_names(evaluator: ExpressionEvaluator, outer: dict[str, Value]) -> None:
    """Forget the names of an assignment."""
    evaluator.scope.clear()
    evaluator.scope.update(outer)


def _target(evaluator: ExpressionEvaluator, node: s.Target) -> tuple[TensorRef, tuple[tuple[s.Expression, ...], ...]]:
    ref, brackets = evaluator.scope[node.name], node.brackets
    if isinstance(ref, TensorList) and brackets:
        with Located(node.span):
            ref = evaluator.list_item(ref, evaluator.evaluate(brackets[0][0]))
        brackets = brackets[1:]
    if isinstance(ref, tuple) and brackets:
        number = evaluator.evaluate(brackets[0][0])
        if not isinstance(number, int) or not 0 <= number < len(ref):
            raise SpecError(f"there are {len(ref)} results '{node.name}', found number {describe(number)}", node.span)
        ref, brackets = ref[number], brackets[1:]
    if not isinstance(ref, TensorRef) or len(brackets) > 1:
        raise SpecError(
            f"'{node.name}' stands for {len(ref) if isinstance(ref, tuple) else 1} tensors",
            node.span,
            "name one, as in y[j][n]",
        )
    return ref, brackets


def _write(
    evaluator: ExpressionEvaluator,
    target: TensorRef,
    brackets: tuple[tuple[s.Expression, ...], ...],
    item: s.Assignment,
) -> tuple[Index, ...]:
    if not brackets:
        return tuple(as_index(evaluator.new_variable(f"i{n}", size)) for n, size in enumerate(target.type.shape))
    write: list[Index] = []
    entries = _align(target, brackets[0])
    for node, entry in zip(brackets[0], entries, strict=True):
        inner = node.value if isinstance(node, s.Spread) else node
        if isinstance(inner, s.Name) and inner.id not in evaluator.scope:
            _bind_axis(evaluator, inner, isinstance(node, s.Spread), entry)
        with Located(node.span):
            for value in evaluator.items((node,)):
                write.append(evaluator.as_index(value, len(write), target.type))
    if len(write) != len(target.type.shape):
        raise SpecError(
            f"{target.type} tensor '{target.name}' needs {len(target.type.shape)} subscripts, found {len(write)}",
            item.target.span,
        )
    nothing = any(v.extent == 0 for v in evaluator.variables)
    for axis, (index, extent) in enumerate(zip(write, target.type.shape, strict=True)):
        if indirects(index) and not item.into:
            raise data_index_error(target, index, axis, item)
        low, high = index.bounds()
        added = item.into == ONE_ARRIVAL and bool(indirects(index)) and (len(index.terms) > 1 or index.const != 0)
        tested = added and any(p.extent == extent for p, _ in index.terms if isinstance(p, Indirect))
        dropped = tested or (item.into == ONE_ARRIVAL and not indirects(index))
        if extent and not nothing and not dropped and (added or not 0 <= low <= high < extent):
            where = f"{index.text} runs from {low} to {high}, axis {axis} has {extent} elements"
            raise SpecError(f"'{target.name}' is written out of bounds: {where}", item.target.span)
    return tuple(write)


def _nothing(target: TensorRef, item: s.Assignment) -> Statement:
    """Return the statement of a tensor at which nothing arrives: the identity everywhere."""
    axes = tuple(Var(f"i{n}", extent) for n, extent in enumerate(target.type.shape))
    value = Const(COMBINERS[str(item.into)].identity(target.type.dtype), target.type.dtype)
    write = tuple(map(as_index, axes))
    return Statement(target.name, tuple(a for a in axes if a.extent != 1), write, value, span=item.span)


def _bind_axis(evaluator: ExpressionEvaluator, name: s.Name, spread: bool, entry: int | tuple[int, ...] | None) -> None:
    """Bind an index variable of the left-hand side to the extent declared at its place."""
    if spread and isinstance(entry, tuple):
        evaluator.scope[name.id] = tuple(
            as_index(evaluator.new_variable(f"{name.id}{n}", size)) for n, size in enumerate(entry)
        )
    elif not spread and isinstance(entry, int):
        evaluator.scope[name.id] = as_index(evaluator.new_variable(name.id, entry))
    else:
        raise SpecError(
            f"the range of '{name.id}' is unknown",
            name.span,
            "subscripts must match the declared shape entry by entry, or add 'for'",
        )


def _merge(evaluator: ExpressionEvaluator, first: int) -> None:
    """Let a reduction whose value is stored as it is write the target itself."""
    statements, tensors = evaluator.statements, evaluator.tensors
    last = statements[-1]
    body = last.body
    if not isinstance(body, Read) or body.guards or last.into:
        return
    for position in range(first, len(statements) - 1):
        source = statements[position]
        used = any(r.tensor == source.target for st in statements[position + 1 : -1] for r in reads(st.body))
        if source.target != body.tensor or used or set(source.axes) != set(last.axes):
            continue
        if body.indices == tuple(as_index(a) for a in source.axes):
            del statements[position], tensors[source.target]
            statements[-1] = evolve(last, body=source.body, reduce=source.reduce, combine=source.combine)
        return


def _align(target: TensorRef, nodes: tuple[s.Expression, ...]) -> tuple[int | tuple[int, ...] | None, ...]:
    """Pair subscripts with the entries of the declared shape, or with single dims where none is spread."""
    if len(target.items) == len(nodes) and all(
        isinstance(n, s.Spread) == isinstance(e, tuple) for n, e in zip(nodes, target.items, strict=True)
    ):
        return target.items
    if not any(isinstance(n, s.Spread) for n in nodes) and len(nodes) == len(target.type.shape):
        return target.type.shape
    return (None,) * len(nodes)
