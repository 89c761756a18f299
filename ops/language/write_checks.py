"""Checks of assignments: places of writes, distinct elements, and their coverage."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from ...ir import (
    ONE_ARRIVAL,
    DType,
    Index,
    Indirect,
    SpecError,
    TensorType,
    Var,
    indirects,
    is_affine,
    variables,
)
from .declaration import Declaration
from .evaluation import ExpressionEvaluator, TensorList, TensorRef
from .text import syntax as s


def data_index_error(target: TensorRef, index: Index, axis: int, item: s.Assignment) -> SpecError:
    """Return the error of a write at a place from data."""
    place = indirects(index)[0]
    element = f"{place.tensor}[{', '.join(i.text for i in place.indices)}]"
    way = f"scatter sum {target.name}[{element}] = value"
    where = f"'{target.name}' is written where data says, at {element} of axis {axis}"
    message = f"{where}: an element could be written twice, or never"
    return SpecError(
        message, item.target.span, f"say what becomes of values that meet, as in {way} (or prod, min, max)"
    )


def check_places(target: TensorRef, write: tuple[Index, ...], item: s.Assignment) -> None:
    """Check that an integer of a tensor is the entire index.

    With nothing added to it, places out of range are detected; where exactly one value arrives (`one`), the index is
    tested as a whole. A condition does not arrive anywhere. Raises `SpecError` otherwise.
    """
    if item.into and target.type.dtype is DType.BOOL:
        raise SpecError(
            f"'{target.name}' holds conditions, which have no {item.into}", item.target.span, "use integers"
        )
    for index in write:
        if indirects(index) and not _is_place(index, item.into == ONE_ARRIVAL):
            raise SpecError(f"'{target.name}' is written at {index.text}, which is no element", item.target.span,
                            "write what is computed to an intermediate of integers first")  # fmt: skip


def _is_place(index: Index, added: bool) -> bool:
    """Return whether an index is an integer of a tensor, alone or with variables and integers `added` to it."""
    looked_up = tuple((primary, factor) for primary, factor in index.terms if isinstance(primary, Indirect))
    rest = index - Index(0, looked_up)
    if added:
        return any(factor == 1 for _, factor in looked_up) and is_affine(rest) and rest.bounds()[0] >= 0
    return len(looked_up) == 1 and looked_up[0][1] == 1 and rest == Index()


def check_injective(target: TensorRef, write: tuple[Index, ...], axes: list[Var], item: s.Assignment) -> None:
    """Check that different values of the variables write different elements.

    Each variable has a place of its own, as digits of a number have. Raises `SpecError` otherwise.
    """
    if item.into:
        return
    lost = [v.name for v in axes if sum(v in variables(index) for index in write) != 1]
    for index in write:
        room = 1
        for primary, factor in sorted(
            ((a, abs(f)) for a, f in index.terms if isinstance(a, Var)), key=lambda term: term[1]
        ):
            lost += [primary.name] if factor < room else []
            room += factor * (primary.extent - 1)
        if not is_affine(index):
            raise SpecError(f"'{target.name}' is written at {index.text}, which is not affine", item.target.span)
    if lost:
        hint = "each variable needs a place of its own in the subscripts"
        raise SpecError(
            f"'{target.name}' is written several times, for every value of {', '.join(lost)}", item.target.span, hint
        )


def check_coverage(decl: Declaration, evaluator: ExpressionEvaluator, inputs: list[str]) -> None:
    """Check that every element of a result or intermediate is written once.

    Writes are injective, and ranges add up.

    Raises `SpecError` where the elements that are written are too few or too many.
    """
    written: dict[str, int] = {}
    for statement in evaluator.statements:
        count = evaluator.tensors[statement.target].size if statement.into else prod(a.extent for a in statement.axes)
        written[statement.target] = written.get(statement.target, 0) + count
    for name, type_ in (*evaluator.tensors.items(), *_unreferenced_lists(evaluator)):
        if name in inputs or name in evaluator.tables or written.get(name, 0) == type_.size:
            continue
        raise SpecError(
            f"op '{decl.name}' writes {written.get(name, 0)} of the {type_.size} elements of '{name}'", decl.span
        )


def _unreferenced_lists(evaluator: ExpressionEvaluator) -> Iterator[tuple[str, TensorType]]:
    """Yield the first tensor of each list without a reference."""
    for ref in evaluator.scope.values():
        if isinstance(ref, TensorList) and ref.name not in evaluator.wholes:
            number = next((n for n in range(ref.count) if (ref.name, n) not in evaluator.numbered), None)
            if number is not None:
                yield f"{ref.name}_{number}", ref.type


def write_axes(write: tuple[Index, ...]) -> tuple[Var, ...]:
    """Return the variables of a write in order of first occurrence.

    Those of extent 1 are left out.
    """
    found: dict[Var, None] = {}
    for index in write:
        found.update(dict.fromkeys(sorted(variables(index), key=lambda v: v.name)))
    return tuple(found)
