"""Common subexpressions of sums with constant coefficients, as in fast transforms.

A `LinearCombiner` splits expressions into *linear nodes* (sums of operands with constant coefficients), leaves and
function calls. Sums nested under a coefficient stay separate, so that a separable transform stays separable. All linear
nodes of one depth share subexpressions: while a pair of operands occurs in two sums with the same ratio of
coefficients, it is computed once. From the matrix of a discrete Fourier transform this finds the butterflies of the
FFT, from those of Winograd's transforms their textbook forms.

    x0 + x1 + x2 + x3, x0 + x1 - x2 - x3    ->    t = x0 + x1, u = x2 + x3; t + u, t - u
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from attrs import field, frozen

from ..ir import Call, Cast, Const, DType, Expr, TensorType, dtype_of
from .fold import Folder

#: Significant digits that two ratios of coefficients have to agree in; tables hold rounded irrational numbers.
_DIGITS = 11
#: Largest remainder of coefficients that cancel except for rounding, as a share of them.
_NOTHING = 2.0**-48

Pair: TypeAlias = tuple[int, int, float]


@frozen(cache_hash=True)
class _Leaf:
    expr: Expr


@frozen(cache_hash=True)
class _Apply:
    """A function call or a cast (`fn` is the type then) of nodes, each with a constant factor."""

    fn: str | DType
    args: tuple[tuple[float, int], ...]
    dtype: DType


@frozen(cache_hash=True)
class _Linear:
    terms: tuple[tuple[int, float], ...]
    dtype: DType


_Node: TypeAlias = _Leaf | _Apply | _Linear


@frozen
class LinearCombiner:
    """Collects expressions with numeric tables, then rebuilds all of them together."""

    tensors: Mapping[str, TensorType]
    folder: Folder
    numbers: dict[_Node, int] = field(factory=dict)
    nodes: list[_Node] = field(factory=list)
    depths: list[int] = field(factory=list)
    seen: dict[Expr, tuple[float, int]] = field(factory=dict)
    signs: dict[int, float] = field(factory=dict)

    def combine(self, bodies: Sequence[Expr]) -> list[Expr]:
        """Return the expressions rebuilt; equal parts are one object."""
        roots = [self._add(body) for body in bodies]
        made: dict[int, Expr] = {}
        for depth in range(max(self.depths, default=0) + 1):
            level = [n for n, d in enumerate(self.depths) if d == depth]
            self._build_sums([n for n in level if isinstance(self.nodes[n], _Linear)], made)
            for number in level:
                node = self.nodes[number]
                if isinstance(node, _Leaf):
                    made[number] = self.folder.intern(node.expr)
                elif isinstance(node, _Apply):
                    made[number] = self._apply(node, made)
        return [self._scale(factor * self.signs.get(n, 1.0), made[n]) for factor, n in roots]

    def _apply(self, node: _Apply, made: Mapping[int, Expr]) -> Expr:
        args = tuple(self._scale(factor * self.signs.get(n, 1.0), made[n]) for factor, n in node.args)
        return (
            self.folder.intern(Cast(node.fn, *args)) if isinstance(node.fn, DType) else self.folder.call(node.fn, *args)
        )

    # # ---- decomposition

    def _add(self, expr: Expr) -> tuple[float, int]:
        """Return the constant factor and the number of the node that an expression is."""
        if expr not in self.seen:
            self.seen[expr] = self._split(expr)
        return self.seen[expr]

    def _split(self, expr: Expr) -> tuple[float, int]:
        if isinstance(expr, Cast):
            return 1.0, self._number(_Apply(expr.dtype, (self._add(expr.arg),), expr.dtype))
        if not isinstance(expr, Call):
            return 1.0, self._number(_Leaf(expr))
        dtype = dtype_of(expr, self.tensors)
        if dtype.is_float and expr.fn in ("add", "sub", "neg", "mul"):
            terms: dict[int, list[float]] = {}
            self._collect(expr, 1.0, terms)
            return self._linear({n: _total(parts) for n, parts in terms.items()}, dtype)
        return 1.0, self._number(_Apply(expr.fn, tuple(self._add(a) for a in expr.args), dtype))

    def _collect(self, expr: Expr, factor: float, terms: dict[int, list[float]]) -> None:
        """Gather the coefficients of each term, entering sums but not sums under a product: those are a level of their
        own.
        """
        if isinstance(expr, Call) and expr.fn in ("add", "sub"):
            self._collect(expr.args[0], factor, terms)
            self._collect(expr.args[1], factor if expr.fn == "add" else -factor, terms)
            return
        if isinstance(expr, Call) and expr.fn == "neg":
            self._collect(expr.args[0], -factor, terms)
            return
        scale, rest = _constant_factor(expr)
        if rest is None:
            number, scale = self._number(_Leaf(Const(1.0, dtype_of(expr, self.tensors)))), factor * scale
        elif isinstance(rest, Call) and rest.fn == "mul":
            number, scale = self._product(rest), factor * scale
        else:
            inner, number = self._add(rest)
            scale = factor * scale * inner
        terms.setdefault(number, []).append(scale)

    def _product(self, expr: Call) -> int:
        return self._number(_Apply("mul", tuple(self._add(a) for a in expr.args), dtype_of(expr, self.tensors)))

    def _linear(self, terms: Mapping[int, float], dtype: DType) -> tuple[float, int]:
        """Number a sum; its first coefficient is 1, so that sums that differ by a factor are one."""
        kept = sorted((n, c) for n, c in terms.items() if c != 0)
        if not kept:
            return 1.0, self._number(_Leaf(Const(0.0, dtype)))
        first = kept[0][1]
        if len(kept) == 1:
            return first, kept[0][0]
        same = len({abs(c) for _, c in kept}) == 1
        scale = first if same else math.copysign(1.0, first)
        number = self._number(_Linear(tuple((n, c / scale) for n, c in kept), dtype))
        self.signs.setdefault(number, math.copysign(1.0, scale))  # a sum is made with the sign it is first needed with
        return scale, number

    def _number(self, node: _Node) -> int:
        if node not in self.numbers:
            below: list[int] = []
            if isinstance(node, _Apply):
                below = [n for _, n in node.args]
            elif isinstance(node, _Linear):
                below = [n for n, _ in node.terms]
            self.numbers[node] = len(self.nodes)
            self.nodes.append(node)
            self.depths.append(1 + max((self.depths[n] for n in below), default=-1))
        return self.numbers[node]

    # ---- building

    def _build_sums(self, numbers: Sequence[int], made: dict[int, Expr]) -> None:
        """Build the sums of one depth: first the pairs that several of them share, then the remainder of each."""
        sums: dict[int, dict[int, float]] = {}
        dtype = DType.F32
        for number in numbers:
            node = self.nodes[number]
            assert isinstance(node, _Linear)
            dtype, own = node.dtype, self.signs.get(number, 1.0)
            sums[number] = {n: own * coefficient * self.signs.get(n, 1.0) for n, coefficient in node.terms}
        pairs: dict[int, dict[int, float]] = {}
        table = _Pairs(sums)
        while (pair := table.most_common()) is not None:
            fresh = len(self.nodes) + len(pairs)
            holders = table.holders(pair)
            sign = 1.0 if 2 * sum(sums[n][pair[0]] > 0 for n in holders) >= len(holders) else -1.0
            exact = sums[holders[0]][pair[1]] / sums[holders[0]][pair[0]]
            pairs[fresh] = {pair[0]: sign, pair[1]: sign * exact}
            for number in holders:
                table.replace(number, pair, fresh, sign)
        parts = dict(made)
        for number, terms in pairs.items():
            parts[number] = self._sum(terms, parts, dtype)
        for number, terms in sums.items():
            made[number] = self._sum(terms, parts, dtype)

    def _sum(self, terms: Mapping[int, float], made: Mapping[int, Expr], dtype: DType) -> Expr:
        """Add terms up, those of one magnitude first, so that each magnitude is multiplied once; start with a positive
        one.
        """
        groups: dict[float, list[tuple[int, float]]] = {}
        for number, coefficient in sorted(terms.items(), key=lambda t: (t[1] < 0, abs(t[1]) != 1, t[0])):
            groups.setdefault(abs(coefficient), []).append((number, coefficient))
        total: Expr | None = None
        for magnitude, members in groups.items():
            positive = members[0][1] > 0
            part = made[members[0][0]]
            for number, coefficient in members[1:]:
                part = self.folder.call("add" if (coefficient > 0) == positive else "sub", part, made[number])
            part = self._scale(magnitude, part)
            if total is None:
                total = part if positive else self.folder.call("neg", part)
            else:
                total = self.folder.call("add" if positive else "sub", total, part)
        assert total is not None
        return total

    def _scale(self, factor: float, expr: Expr) -> Expr:
        if factor == 1:
            return expr
        scaled = (
            expr if factor == -1 else self.folder.call("mul", Const(abs(factor), dtype_of(expr, self.tensors)), expr)
        )
        return self.folder.call("neg", scaled) if factor < 0 else scaled


def _total(parts: Sequence[float]) -> float:
    """Return a sum of coefficients, 0 where they cancel but for rounding."""
    total = sum(parts)
    return 0.0 if abs(total) <= _NOTHING * sum(map(abs, parts)) else total


def _constant_factor(expr: Expr) -> tuple[float, Expr | None]:
    """Split a product into its constant factor and the rest, None where nothing is left."""
    if isinstance(expr, Const):
        return float(expr.value), None
    if not (isinstance(expr, Call) and expr.fn == "mul"):
        return 1.0, expr
    (one, left), (other, right) = _constant_factor(expr.args[0]), _constant_factor(expr.args[1])
    if left is None or right is None:
        return one * other, right if left is None else left
    return one * other, expr if one == other == 1 else Call("mul", (left, right))


class _Pairs:
    """Pairs of operands, with their sums and ratios, updated while pairs are replaced by single operands."""

    def __init__(self, sums: dict[int, dict[int, float]]) -> None:
        self.sums = sums
        self.found: dict[Pair, dict[int, None]] = {}
        self.queue: list[tuple[int, bool, Pair]] = []
        for number, terms in sums.items():
            for pair in _pairs_of(terms, terms):
                self._add(number, pair)

    def most_common(self) -> Pair | None:
        """Return the pair in most sums, None where no two share any.

        Plain sums come before scaled ones, earlier operands first.
        """
        while self.queue:
            count, _, pair = self.queue[0]
            if len(self.found[pair]) == -count:
                return pair
            heapq.heappop(self.queue)
        return None

    def holders(self, pair: Pair) -> list[int]:
        """Return the sums that hold a pair."""
        return sorted(self.found[pair])

    def replace(self, number: int, pair: Pair, fresh: int, sign: float) -> None:
        """Replace a pair in a sum by one operand."""
        terms = self.sums[number]
        for gone in dict.fromkeys(_pairs_of(terms, pair[:2])):
            del self.found[gone][number]
            self._push(gone)
        terms[fresh] = sign * terms.pop(pair[0])
        del terms[pair[1]]
        for new in _pairs_of(terms, (fresh,)):
            self._add(number, new)

    def _add(self, number: int, pair: Pair) -> None:
        self.found.setdefault(pair, {})[number] = None
        self._push(pair)

    def _push(self, pair: Pair) -> None:
        if len(self.found[pair]) > 1:
            heapq.heappush(self.queue, (-len(self.found[pair]), abs(pair[2]) != 1, pair))


def _pairs_of(terms: Mapping[int, float], touching: Iterable[int]) -> Iterator[Pair]:
    """Yield the pairs of a sum that one of the given operands belongs to, those of two of them twice."""
    for one in touching:
        for other in terms:
            if one != other:
                first, second = min(one, other), max(one, other)
                yield first, second, float(f"{terms[second] / terms[first]:.{_DIGITS}g}")
