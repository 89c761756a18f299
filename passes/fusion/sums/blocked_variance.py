"""Blocked variance: sums of squares about a mean from those of parts.

The differences of a row from its mean need that mean first, so rows that no block holds come from memory twice. A part
of a row has a mean of its own, about which its squares are summed while a block holds it; the differences of these
means from the mean of the row are added afterwards (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample
variance", section 2):

    t[i] = sum_r x[i, r];    m[i] = t[i] / n;    s[i] = sum_r (x[i, r] - m[i]) ** 2
      ->   of[p, i] = sum_r x[i, b*p + r];    mean[p, i] = of[p, i] / b
           square[p, i] = sum_r (x[i, b*p + r] - mean[p, i]) ** 2;    rest[p, i] = sum_r (x[i, b*p + r] - mean[p, i])
           t[i] = sum_p mean[p, i];    m[i] = t[i] / (n // b);    d[p, i] = mean[p, i] - m[i]
           s[i] = sum_p (square[p, i] + d[p, i] * (2 * rest[p, i] + b * d[p, i]))

In real arithmetic it is the same number. The rest is the rounding error of a part's mean, which counts where the mean
is large beside the deviation. Where the differences have other readers, too, as in a norm, the row is needed again
anyway, and nothing changes; nor where a block holds whole rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Const,
    Expr,
    Index,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    solve,
    substitute,
    substitute_expr,
)
from ....ops.language import unused_name
from ..programs import Programs, Unit
from .rewriter import DefUseRewriter

#: Elements that a block holds, and neighbours that are loaded together from rows across memory.
MAX_BLOCK_ELEMENTS, ROW_NEIGHBOURS = 1 << 15, 8
#: Least elements of a part and, for rows across memory, most.
MIN_PART, MAX_PART = 16, 256


def block_variances(programs: Programs) -> Programs:
    """Return programs in which variances of long rows are blocked."""
    writer = _VarianceRewriter(programs)
    for unit in programs.units:
        for statement in unit.statements if unit.repeat is None else ():
            moment = writer.moment_of(statement)
            if moment is not None:
                writer.divide(moment)
    return writer.result


@frozen
class _Moment:
    """A sum of squares about a mean: the statements of the sum, its `means`, the differences and the squares. `element`
    is the read summed, by the axes of the squares, and `axes` are those of the sum, by the same.
    """

    total: Statement
    means: tuple[Statement, ...]
    difference: Statement
    squares: Statement
    element: Read
    mean: Read
    axes: tuple[Var, ...]
    size: int

    @property
    def parts(self) -> int:
        """Number of parts of a row."""
        return self.squares.reduce[0].extent // self.size


class _VarianceRewriter(DefUseRewriter):
    """Rewrites sums of squares."""

    # ---- matching

    def moment_of(self, squares: Statement) -> _Moment | None:
        """Return the moment if `squares` sums squares about a long row's mean."""
        left, right = _operands(squares.body, "mul")
        if (
            squares.combine != "sum"
            or squares.into
            or not isinstance(left, Read)
            or left != right
            or not squares.reduce
        ):
            return None
        difference = self._only_writer(left.tensor)
        if difference is None or self.uses[left.tensor] != [squares] or left.tensor in self.programs.graph.outputs:
            return None
        element, mean = (_operand_at(read, difference, left.indices) for read in _operands(difference.body, "sub"))
        if element is None or mean is None:
            return None
        quotient = self._only_writer(mean.tensor)
        total = (
            _operand_at(_operands(quotient.body, "div")[0], quotient, mean.indices) if quotient is not None else None
        )
        summed = self._only_writer(total.tensor) if total is not None else None
        if total is None or summed is None or summed.combine != "sum" or not isinstance(summed.body, Read):
            return None
        own = solve(list(zip(summed.write, total.indices, strict=True)), summed.axes)
        if own is None or own.free or own.guards or len(summed.reduce) != len(squares.reduce):
            return None
        axes = [next((v for v in squares.axes if own.values[a] == as_index(v)), None) for a in summed.axes]
        rows = {r: as_index(s) for r, s in zip(summed.reduce, squares.reduce, strict=True)}
        same = substitute_expr(summed.body, {**own.values, **rows}) == element
        same_extents = [r.extent for r in summed.reduce] == [s.extent for s in squares.reduce]
        means, size = self._means(summed), self._size(squares, element)
        if None in axes or set(axes) != set(squares.axes) or not same or not same_extents or not means or not size:
            return None
        known = tuple(a for a in axes if a is not None)
        return _Moment(summed, means, difference, squares, element, mean, known, size)

    def _only_writer(self, tensor: str) -> Statement | None:
        """Return the only statement that writes a tensor, if no loop or scatter does."""
        found = self.definitions.get(tensor, [])
        plain = len(found) == 1 and found[0].into is None and found[0].step is None
        inside = any(found[0] in unit.statements for unit in self.units) if plain else False
        return found[0] if inside else None

    def _means(self, total: Statement) -> tuple[Statement, ...]:
        """Return the statements that read a sum, if each makes the mean of it."""
        count = prod(r.extent for r in total.reduce)
        for reader in self.uses[total.target]:
            sum_, number = _operands(reader.body, "div")
            right = isinstance(sum_, Read) and not sum_.guards and isinstance(number, Const) and number.value == count
            if not right or not reader.is_pointwise:
                return ()
        return () if total.target in self.programs.graph.outputs else tuple(self.uses[total.target])

    def _size(self, squares: Statement, element: Read) -> int:
        """Return the elements of the first reduced axis in a part, 0 where a block holds a whole row."""
        first, *others = (r.extent for r in squares.reduce)
        along = any(r in (v for v, _ in element.indices[-1].terms) for r in squares.reduce)
        if (
            first * prod(others) * (1 if along else ROW_NEIGHBOURS) <= MAX_BLOCK_ELEMENTS
            or not self.types[element.tensor].dtype.is_float
        ):
            return 0
        longest = MAX_PART * (ROW_NEIGHBOURS if along else 1)
        sizes = [n for n in range(1, first) if first % n == 0 and MIN_PART <= n * prod(others) <= longest]
        return max(sizes, default=0)

    # ---- rewriting

    def divide(self, moment: _Moment) -> None:
        """Write the parts, and rewrite the sum, its means and squares."""
        squares, element, count = moment.squares, moment.element, moment.parts
        taken = {v.name for v in (*squares.axes, *squares.reduce)}
        part, first = Var(unused_name("p", taken), count), Var(squares.reduce[0].name, moment.size)
        rows = (first, *squares.reduce[1:])
        length = float(prod(r.extent for r in rows))
        axes, place = (part, *squares.axes), tuple(map(as_index, (part, *squares.axes)))
        here = substitute_expr(element, {squares.reduce[0]: as_index(part) * moment.size + as_index(first)})
        dtype = self.types[squares.target].dtype
        shape = tuple(a.extent for a in axes)
        names = ("of", "mean_of_part", "squares_of_part", "rest_of_part")
        of, mean, square, rest = (
            self.add_tensor(f"{squares.target}.{name}", TensorType(dtype, shape)) for name in names
        )
        centred = Call("sub", (here, Read(mean, place)))
        parts = (
            Statement(of, axes, place, here, rows, "sum"),
            Statement(mean, axes, place, Call("div", (Read(of, place), Const(length, dtype)))),
            Statement(square, axes, place, Call("mul", (centred, centred)), rows, "sum"),
            Statement(rest, axes, place, centred, rows, "sum"),
        )
        between = Call("sub", (Read(mean, place), moment.mean))
        twice = Call("mul", (Const(2.0, dtype), Read(rest, place)))
        spread = Call("mul", (between, Call("add", (twice, Call("mul", (Const(length, dtype), between))))))
        whole = evolve(squares, body=Call("add", (Read(square, place), spread)), reduce=(part,))
        back = {s: as_index(t) for t, s in zip(moment.total.axes, moment.axes, strict=True)}
        total = evolve(moment.total, body=substitute_expr(Read(mean, place), back), reduce=(part,))
        number = Const(float(count), dtype)
        means = {
            m: evolve(m, body=Call("div", (read, number)))
            for m in moment.means
            if isinstance(read := _operands(m.body, "div")[0], Read)
        }
        self._replace({moment.total: total, moment.squares: whole, **means}, parts, moment)
        self.has_changed = True

    def _replace(self, new: dict[Statement, Statement], parts: Sequence[Statement], moment: _Moment) -> None:
        units: list[Unit] = []
        for unit in self.units:
            if moment.total in unit.statements:
                made = tuple(part.target for part in parts[1:])
                units.append(
                    Unit(f"{unit.name}.parts", unit.node, unit.op, tuple(parts), (moment.element.tensor,), made)
                )
            left = tuple(new.get(s, s) for s in unit.statements if s != moment.difference)
            if left or unit.repeat is not None or not unit.statements:
                units.append(unit if left == unit.statements else self.update_uses(evolve(unit, statements=left)))
        self.units = units


def _operands(expr: Expr, fn: str) -> tuple[Expr, Expr] | tuple[None, None]:
    """Return the two operands of a call of `fn`, else nothing."""
    return (expr.args[0], expr.args[1]) if isinstance(expr, Call) and expr.fn == fn else (None, None)


def _operand_at(read: Expr | None, statement: Statement, indices: Sequence[Index]) -> Read | None:
    """Return the operand of a pointwise statement at an element of its result, None for guarded elements."""
    if not isinstance(read, Read) or read.guards or not statement.is_pointwise:
        return None
    found = solve(list(zip(statement.write, indices, strict=True)), statement.axes)
    if found is None or found.free or found.guards:
        return None
    return evolve(read, indices=tuple(substitute(i, found.values) for i in read.indices))
