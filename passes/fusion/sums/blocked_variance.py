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

Of several reduced axes the innermost are whole, as many as a part may have, and the next one is divided. In real
arithmetic it is the same number. The rest is the rounding error of a part's mean, which counts where the mean is large
beside the deviation. Where the differences have other readers, too, nothing changes; nor where a block holds whole
rows. Rows lie along memory or across it in the tensor that affine views and conversions show: those of the channels of
a channels-last image lie across it.
"""

from __future__ import annotations

from math import prod

from attrs import evolve, frozen

from ....ir import (
    Call,
    Cast,
    Const,
    Expr,
    Index,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    indirects,
    is_affine,
    substitute,
    substitute_expr,
    variables,
)
from ....ops.language import unused_name
from ...statements import (
    DefinedElement,
    DefUse,
    Edit,
    Match,
    NewUnit,
    Programs,
    RewriteRule,
    anything,
    axis_values,
    converted_element,
    pointwise,
    reduction,
    rewrite,
)
from .shifted_mean import find_means

#: Elements that a block holds, and neighbours that are loaded together from rows across memory.
MAX_BLOCK_ELEMENTS, ROW_NEIGHBOURS = 1 << 15, 8
#: Least elements of a part, and most: of rows across memory, whose second pass L2 serves for all resident blocks, and
#: of rows along it.
MIN_PART, MAX_PART, MAX_PART_ALONG = 16, 64, 4096

VALUE = converted_element("x")
MEAN = pointwise(reduction("sum", VALUE, "total") / anything(), "average")
DIFFERENCE = pointwise(VALUE - MEAN, "difference")
SQUARES = reduction("sum", DIFFERENCE * DIFFERENCE)


def block_variances(programs: Programs, blocks: int = 1) -> Programs:
    """Return programs in which variances of long rows are blocked.

    They are those that `blocks` blocks do not hold.
    """
    return rewrite(programs, RewriteRule(SQUARES, lambda match: _variance(match, blocks), _block))


@frozen
class _Variance:
    """Every mean of the sum, the axes of the sum by those of the squares, and the elements of a part by axis."""

    means: tuple[Match, ...]
    axes: dict[Var, Var]
    sizes: tuple[int, ...]


def _variance(match: Match, blocks: int) -> _Variance | None:
    """Return the facts of a variance of long rows, whose differences have no other readers."""
    squares, index, total = match.root, match.index, match.get("total", DefinedElement)
    if not index.is_only_read_by(match.statement("difference").target, [squares]):
        return None
    rows, count = ([r.extent for r in s.reduce] for s in (squares, total.statement))
    axes = {a: v for a, value in total.values.items() for v in reversed(squares.axes) if value == as_index(v)}
    means = find_means(total.statement, index)
    sizes = _part_sizes(squares, _read_of(match.expr("x")), match, blocks)
    whole = {*axes} == {*total.statement.axes} and {*axes.values()} == {*squares.axes}
    return _Variance(means, axes, sizes) if rows == count and whole and means and sizes else None


def _part_sizes(squares: Statement, x: Expr, match: Match, blocks: int) -> tuple[int, ...]:
    """Return the elements of each reduced axis in a part, () where a block holds a whole row.

    So do several along it that hold it for other readers.
    """
    assert isinstance(x, Read)
    again = {*match.index.uses[x.tensor]} - {match.statement("total"), match.statement("difference")}
    blocks = blocks if again else 1
    along = any(r in variables(_shown_element(x, match.index).indices[-1]) for r in squares.reduce)
    row = prod(r.extent for r in squares.reduce)
    held = row <= MAX_BLOCK_ELEMENTS * blocks if along else row * ROW_NEIGHBOURS <= MAX_BLOCK_ELEMENTS
    if held or not match.index.types[x.tensor].dtype.is_float:
        return ()
    sizes, longest = list[int](), MAX_PART_ALONG if along else MAX_PART
    for extent in (r.extent for r in reversed(squares.reduce)):
        sizes.append(max(n for n in range(1, min(extent, longest) + 1) if extent % n == 0))
        longest = longest // extent if sizes[-1] == extent else 1
    return tuple(reversed(sizes)) if prod(sizes) >= MIN_PART else ()


def _read_of(expr: Expr) -> Expr:
    """Return an expression without conversions."""
    while isinstance(expr, Cast):
        expr = expr.arg
    return expr


def _shown_element(x: Read, index: DefUse) -> Read:
    """Return the element of the tensor that affine views and conversions show."""
    while (copy := index.definition(x)) is not None and copy.is_pointwise:
        body, values = _read_of(copy.body), axis_values(copy, x.indices)
        if not isinstance(body, Read) or body.guards or any(map(indirects, body.indices)) or values is None:
            return x
        shown = evolve(body, indices=tuple(substitute(i, values) for i in body.indices))
        if not all(map(is_affine, shown.indices)):
            return x
        x = shown
    return x


def _divide_axes(
    squares: Statement, sizes: tuple[int, ...]
) -> tuple[tuple[Var, ...], tuple[Var, ...], dict[Var, Index]]:
    """Return the axes of parts, those within a part, and each reduced axis by both."""
    taken = {v.name for v in (*squares.axes, *squares.reduce)}
    parts, rows, places = list[Var](), list[Var](), dict[Var, Index]()
    for axis, size in zip(squares.reduce, sizes, strict=True):
        if size > 1:
            rows.append(Var(axis.name, size))
        if size < axis.extent:
            parts.append(Var(unused_name("p", taken), axis.extent // size))
            taken.add(parts[-1].name)
            places[axis] = as_index(parts[-1]) * size + (as_index(rows[-1]) if size > 1 else 0)
        else:
            places[axis] = as_index(rows[-1] if size > 1 else 0)
    return tuple(parts), tuple(rows), places


def _block(match: Match, found: _Variance) -> Edit:
    """Return the sums of parts in a unit of their own, and the sum, its means and squares over these."""
    squares, index, total = match.root, match.index, match.statement("total")
    dtype, (parts, rows, places) = index.types[squares.target].dtype, _divide_axes(squares, found.sizes)
    axes, count = (*parts, *squares.axes), prod(p.extent for p in parts)
    length, place = Const(float(prod(found.sizes)), dtype), tuple(map(as_index, axes))
    type_ = TensorType(dtype, tuple(a.extent for a in axes))
    names = ("of", "mean_of_part", "squares_of_part", "rest_of_part")
    of, mean, square, rest = (index.add_tensor(f"{squares.target}.{name}", type_) for name in names)
    here = substitute_expr(match.expr("x"), places)
    centred = Call("sub", (here, Read(mean, place)))
    sums = (
        Statement(of, axes, place, here, rows, "sum"),
        Statement(mean, axes, place, Call("div", (Read(of, place), length))),
        Statement(square, axes, place, Call("mul", (centred, centred)), rows, "sum"),
        Statement(rest, axes, place, centred, rows, "sum"),
    )
    between = Call("sub", (Read(mean, place), match.get("average", DefinedElement).read))
    twice = Call("mul", (Const(2.0, dtype), Read(rest, place)))
    spread = Call("mul", (between, Call("add", (twice, Call("mul", (length, between))))))
    whole = evolve(squares, body=Call("add", (Read(square, place), spread)), reduce=parts)
    there = substitute_expr(Read(mean, place), {s: as_index(t) for t, s in found.axes.items()})
    number = Const(float(count), dtype)
    return {
        total: [NewUnit("parts", sums), evolve(total, body=there, reduce=parts)],
        squares: [whole],
        match.statement("difference"): [],
        **{m.root: [evolve(m.root, body=Call("div", (m.get("sum", Read), number)))] for m in found.means},
    }
