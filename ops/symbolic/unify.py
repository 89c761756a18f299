"""One program for a range of sizes, from programs at some sizes.

The programs are walked in parallel. A number that differs between them is an affine extent of the dims, read from
scalar inputs when a kernel runs; the numbers of the greatest sizes stay where they only bound the iteration:

    y[i] = x[7 - i]   for i < 8        at n = 8
    y[i] = x[6 - i]   for i < 7        at n = 7
    y[i] = x[n - 1 - i]   for i < 8                  n from a scalar input
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from attrs import evolve, frozen

from ...ir import (
    Call,
    Cast,
    Clamp,
    Const,
    CutsError,
    Expr,
    FloorDiv,
    Guard,
    Index,
    IndexValue,
    Indirect,
    InRange,
    Mod,
    Primary,
    Read,
    SizeSamples,
    SymbolicExtent,
    TensorType,
    Var,
    as_index,
    call,
    clamp,
    primary_index,
)
from .products import fit_products

T = TypeVar("T")


class SizeDependence(CutsError):
    """Raised where no single kernel can follow a size."""


@frozen
class SizeInput:
    """Scalar input: the size of a dim minus its least one."""

    tensor: str
    low: int
    high: int

    @property
    def index(self) -> Index:
        """The size, with its range."""
        return primary_index(Indirect(self.tensor, (), self.high - self.low + 1, False)) + self.low


class Unifier:
    """Walk over the same parts of programs at several sizes.

    The first program has the greatest sizes.
    """

    def __init__(self, samples: SizeSamples, inputs: Mapping[str, SizeInput]) -> None:
        self.samples = samples
        self.inputs = inputs
        self.counted: dict[str, tuple[str, SymbolicExtent]] = {}

    def size(self, extent: SymbolicExtent) -> Index:
        """Return an extent as an index, read when the kernel runs."""
        result = Index(extent.const)
        for name, factor in extent.terms:
            result = result + self.inputs[name].index * factor
        return result

    def extent(self, values: Sequence[int], what: str) -> SymbolicExtent:
        """Return the affine extent of numbers at the samples.

        Raises `SizeDependence` where there is none.
        """
        found = self.samples.fit(tuple(values))
        if found is None:
            sizes = [", ".join(f"{n}={s}" for n, s in sample.items()) for sample in self.samples.samples]
            seen = "; ".join(f"{value} at {size}" for value, size in zip(values, sizes, strict=True))
            raise SizeDependence(f"{what} is no affine function of the sizes: {seen}")
        return found

    # ---- indices

    def index(self, found: Sequence[Index]) -> Index:
        """Return one index for all sizes.

        Raises `SizeDependence` where there is none.
        """
        first = found[0]
        if all(index == first for index in found):
            return first
        if any(len(index.terms) != len(first.terms) for index in found):
            raise SizeDependence(f"index {first.text} has another form at other sizes")
        result = self.size(self.extent([index.const for index in found], f"a part of index {first.text}"))
        for number, (_, factor) in enumerate(first.terms):
            parts = [index.terms[number] for index in found]
            if any(other != factor for _, other in parts):
                raise SizeDependence(f"index {first.text} has another step at other sizes")
            result = result + self._primary([primary for primary, _ in parts]) * factor
        return result

    def _primary(self, found: Sequence[Primary]) -> Index:
        first = found[0]
        if any(type(primary) is not type(first) for primary in found):
            raise SizeDependence(f"index {first.text} has another form at other sizes")
        if isinstance(first, Var):
            if any(primary.text != first.text for primary in found):
                raise SizeDependence(f"index {first.text} has another form at other sizes")
            return as_index(first)
        parts = tuple(self.index(each) for each in zip(*(primary.parts for primary in found), strict=True))
        if isinstance(first, (FloorDiv, Mod)):
            if any(primary.den != first.den for primary in found):  # type: ignore[union-attr]
                raise SizeDependence(f"index {first.text} divides by a size")
            return first.with_parts(parts)
        if isinstance(first, Clamp):
            return self._clamp(found, parts[0])  # type: ignore[arg-type]
        assert isinstance(first, Indirect)
        if any(primary.tensor != first.tensor for primary in found):  # type: ignore[union-attr]
            raise SizeDependence(f"index {first.text} has another form at other sizes")
        extents = [primary.extent for primary in found]  # type: ignore[union-attr]
        if not first.wraps or all(extent == first.extent for extent in extents):
            return first.with_parts(parts)
        own = self.from_start(first.tensor, self.extent(extents, f"a range of index {first.text}"))
        return primary_index(Indirect(own, parts, first.extent))

    def from_start(self, tensor: str, extent: SymbolicExtent) -> str:
        """Return the name of indices without negative ones.

        Negative elements of the integer tensor `tensor` count from an extent.
        """
        name = f"{tensor}_from_{'_'.join(map(str, (extent.const, *(p for term in extent.terms for p in term))))}"
        self.counted.setdefault(name, (tensor, extent))
        return name

    def _clamp(self, found: Sequence[Clamp], arg: Index) -> Index:
        low, high = (self.extent([getattr(c, side) for c in found], "a bound of an index") for side in ("low", "high"))
        if not low.is_const:
            raise SizeDependence(f"index {found[0].text} has a lower bound that depends on a size")
        if high.is_const:
            return clamp(arg, low.const, high.const)
        raised, last = clamp(arg, low.const, max(low.const, arg.bounds()[1])), self.size(high)
        over = raised - last
        return clamp(over, min(0, over.bounds()[0]), 0) + last

    # ---- guards and expressions

    def guards(self, found: Sequence[tuple[Guard, ...]]) -> tuple[Guard, ...]:
        """Return guards for all sizes.

        Raises `SizeDependence` where there are none.
        """
        if any(len(guards) != len(found[0]) for guards in found):
            raise SizeDependence("a condition has another form at other sizes")
        return tuple(new for each in zip(*found, strict=True) for new in self._guard(each))

    def _guard(self, found: Sequence[Guard]) -> tuple[Guard, ...]:
        index = self.index([guard.index for guard in found])
        low, high = (
            self.extent([getattr(g, side) for g in found], "a bound of a condition") for side in ("low", "high")
        )
        if low.is_const and high.is_const:
            return (Guard(index, low.const, high.const),)
        return (*self._at_least(index, low), *self.guards_below(index, high))

    def _at_least(self, index: Index, low: SymbolicExtent) -> tuple[Guard, ...]:
        over = index - self.size(low)
        return (Guard(over, 0, max(1, over.bounds()[1] + 1)),)

    def guards_below(self, index: Index, high: SymbolicExtent) -> tuple[Guard, ...]:
        """Return the guard that an index is below an extent."""
        under = index - self.size(high)
        return (Guard(under, min(-1, under.bounds()[0]), 0),)

    def expr(self, found: Sequence[Expr]) -> Expr:
        """Return one expression for all sizes.

        Raises `SizeDependence` where there is none.
        """
        first = found[0]
        if all(expr == first for expr in found):
            return first
        if any(type(expr) is not type(first) for expr in found):
            raise SizeDependence("a value has another form at other sizes")
        if isinstance(first, Const):
            return self._const(found)  # type: ignore[arg-type]
        if isinstance(first, Read):
            return self._read(found)  # type: ignore[arg-type]
        if isinstance(first, IndexValue):
            return IndexValue(self.index([expr.index for expr in found]), first.dtype)  # type: ignore[union-attr]
        if isinstance(first, InRange):
            return InRange(self.guards([expr.guards for expr in found]))  # type: ignore[union-attr]
        if isinstance(first, Call) and any(expr.fn != first.fn for expr in found):  # type: ignore[union-attr]
            raise SizeDependence(f"function {first.fn} is another one at other sizes")
        if isinstance(first, Cast) and any(expr.dtype != first.dtype for expr in found):  # type: ignore[union-attr]
            raise SizeDependence("a conversion has another type at other sizes")
        children = zip(*(expr.children for expr in found), strict=True)
        return first.with_children(tuple(self.expr(each) for each in children))

    def _const(self, found: Sequence[Const]) -> Expr:
        numbers = [int(const.value) for const in found]
        if any(number != const.value for number, const in zip(numbers, found, strict=True)):
            raise SizeDependence(f"number {found[0].value} has another value at other sizes")
        products = fit_products(self.samples, numbers)
        if products is None:
            return IndexValue(self.size(self.extent(numbers, "a number")), found[0].dtype)
        dtype, total = found[0].dtype, None
        for names, factor in products.terms.items():
            index = Index(factor) if not names else self.inputs[names[0]].index * factor
            term: Expr = IndexValue(index, dtype)
            for name in names[1:]:
                term = call("mul", term, IndexValue(self.inputs[name].index, dtype))
            total = term if total is None else call("add", total, term)
        return total or Const(0, dtype)

    def _read(self, found: Sequence[Read]) -> Expr:
        first = found[0]
        if any((read.tensor, read.fill) != (first.tensor, first.fill) for read in found):
            raise SizeDependence("a value is read from another tensor at other sizes")
        indices = tuple(self.index(each) for each in zip(*(read.indices for read in found), strict=True))
        return Read(first.tensor, indices, self.guards([read.guards for read in found]), first.fill)


def common_value(values: Sequence[T], what: str) -> T:
    """Return the value that all programs have.

    Raises `SizeDependence` where they differ.
    """
    if any(value != values[0] for value in values):
        raise SizeDependence(f"{what} differs at other sizes")
    return values[0]


def confine_read(read: Read, type_: TensorType) -> Read:
    """Clamp a read to the tensor's capacity."""
    guarded = {guard.index for guard in read.guards}
    indices = tuple(
        index if index in guarded else clamp(index, 0, max(0, size - 1))
        for index, size in zip(read.indices, type_.shape, strict=True)
    )
    return read if indices == read.indices else evolve(read, indices=indices)
