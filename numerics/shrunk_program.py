"""Shrunk programs: programs with few channels, samples and the like.

Rounding in sums of products depends on filters and tiles, not on the number of channels. A declaration that takes
operands of any size is evaluated on smaller ones. A declaration derived for given sizes, such as a gradient, takes no
others, so its program is shrunk: along every dim that all statements index by one whole axis, or by several axes that
are the digits of an index.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from math import prod

from attrs import define, evolve, field

from ..ir import (
    Expr,
    Index,
    Program,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    distinct,
    indirects,
    map_indices,
    substitute,
    variables,
)


def shrink_programs(programs: Sequence[Program], max_extent: int) -> list[Program]:
    """Return programs with at most `most` elements along shrinkable dims.

    Tensors of one name are one tensor. A dim is shrinkable where only whole axes index it.
    """
    classes = _ExtentClasses()
    for number, program in enumerate(programs):
        for tensor in program.constants:
            classes.fix_all(tensor, program)
        for place, statement in enumerate(program.statements):
            _join(classes, program, statement, (number, place))
    classes.settle()
    return [_smaller(program, number, classes, max_extent) for number, program in enumerate(programs)]


@define
class _ExtentClasses:
    """Classes of dims and axes of one extent, by their representatives: the ones that must keep their extent, and the
    axes that are the digits of an index along them, each with its extent.
    """

    parents: dict[Hashable, Hashable] = field(factory=dict)
    fixed: set[Hashable] = field(factory=set)
    digits: list[tuple[Hashable, tuple[tuple[Hashable, int], ...]]] = field(factory=list)

    def find(self, item: Hashable) -> Hashable:
        """Return the representative of a dim or axis."""
        while (parent := self.parents.get(item, item)) != item:
            item = parent
        return item

    def join(self, one: Hashable, other: Hashable) -> bool:
        """Merge two classes; return whether they were distinct."""
        one, other = self.find(one), self.find(other)
        if one == other:
            return False
        self.parents[one] = other
        if one in self.fixed:
            self.fixed.add(other)
        return True

    def fix(self, item: Hashable) -> bool:
        """Fix the extent of a class; return whether it was free."""
        found = self.find(item)
        news = found not in self.fixed
        self.fixed.add(found)
        return news

    def fix_all(self, tensor: str, program: Program) -> None:
        """Fix the shape of a tensor."""
        for dim in range(len(program.tensors[tensor].shape)):
            self.fix((tensor, dim))

    def settle(self) -> None:
        """Unify the digits of dims that are indexed by digits.

        A dim whose digits differ, or have fixed extents, keeps its extent.
        """
        changed = True
        while changed:
            changed, first = False, dict[Hashable, tuple[tuple[Hashable, int], ...]]()
            for item, digits in self.digits:
                other = first.setdefault(self.find(item), digits)
                same_digits = [extent for _, extent in other] == [extent for _, extent in digits]
                if not same_digits:
                    changed |= self.fix(item)
                if self.find(item) in self.fixed:
                    news = [self.fix(each) for each, _ in (*digits, *other)]
                else:
                    news = [self.join(a, b) for (a, _), (b, _) in zip(digits, other, strict=True)]
                changed |= any(news)

    def extent(self, item: Hashable, own: int, most: int) -> int:
        """Return the extent of a dim or axis in the shrunk program."""
        found = self.find(item)
        if found in self.fixed:
            return own
        digits = next((digits for dim, digits in self.digits if self.find(dim) == found), None)
        return min(own, most) if digits is None else prod(self.extent(each, size, most) for each, size in digits)


def _join(classes: _ExtentClasses, program: Program, statement: Statement, at: tuple[int, int]) -> None:
    """Record the constraints of a statement on the extents of its axes and of the dims that they index."""
    counted = {axis for index in _value_indices(statement.body) for axis in variables(index)}
    counted |= {axis for axis in (statement.step, statement.along) if axis is not None}
    whole = set[Var]()
    for tensor, places in ((statement.target, statement.write), *((r.tensor, r.indices) for r in statement.reads)):
        for dim, (index, extent) in enumerate(zip(places, program.tensors[tensor].shape, strict=True)):
            digits = _digits(index)
            if extent and digits and prod(axis.extent for axis in digits) == extent and statement.into is None:
                whole.update(digits)
                if len(digits) == 1:
                    classes.join((tensor, dim), (at, digits[0]))
                else:
                    classes.digits.append(((tensor, dim), tuple(((at, axis), axis.extent) for axis in digits)))
                continue
            classes.fix((tensor, dim))
            counted.update(variables(index))
            for held in indirects(index):
                classes.fix_all(held.tensor, program)
    for axis in (*statement.axes, *statement.reduce):
        if axis in counted or axis not in whole:
            classes.fix((at, axis))


def _digits(index: Index) -> tuple[Var, ...]:
    """Return the axes that are the digits of an index, the most significant first; empty where it has none."""
    found, weight = list[Var](), 1
    for primary, factor in sorted(index.terms, key=lambda term: term[1]):
        if not isinstance(primary, Var) or factor != weight:
            return ()
        found.append(primary)
        weight *= primary.extent
    return () if index.const else tuple(reversed(found))


def _value_indices(body: Expr) -> Iterator[Index]:
    """Yield the indices of an expression whose values matter beyond addressing: guards, and numbers made of them."""
    for node in distinct(body):
        yield from (guard.index for guard in node.guards) if isinstance(node, Read) else node.own_indices


def _smaller(program: Program, number: int, classes: _ExtentClasses, most: int) -> Program:
    """Return a program with the extents of the classes."""

    def type_of(tensor: str, type_: TensorType) -> TensorType:
        shape = (classes.extent((tensor, dim), extent, most) for dim, extent in enumerate(type_.shape))
        return TensorType(type_.dtype, tuple(shape))

    def statement_of(place: int, statement: Statement) -> Statement:
        axes = (*statement.axes, *statement.reduce)
        new = {a: Var(a.name, classes.extent(((number, place), a), a.extent, most)) for a in axes}
        return evolve(
            statement,
            axes=tuple(new[a] for a in statement.axes),
            reduce=tuple(new[a] for a in statement.reduce),
            write=tuple(_substitute_axes(index, new) for index in statement.write),
            body=map_indices(statement.body, lambda index: _substitute_axes(index, new)),
        )

    return evolve(
        program,
        tensors={tensor: type_of(tensor, type_) for tensor, type_ in program.tensors.items()},
        statements=tuple(statement_of(place, each) for place, each in enumerate(program.statements)),
    )


def _substitute_axes(index: Index, new: Mapping[Var, Var]) -> Index:
    """Return an index over other axes, with digit weights by the extents of the less significant digits."""
    digits = _digits(index)
    if not digits:
        return substitute(index, new)
    found = Index(0)
    for axis in digits:
        found = found * new.get(axis, axis).extent + as_index(new.get(axis, axis))
    return found
