"""Text of products of lanes, and names of conversions of loaded words."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import DType, LaneProduct, Value, Var, VectorLoad, substitute
from .scope import KernelNames, Writer
from .values import ValuePrinter

#: Rows whose sums are in registers together.
ROWS_AT_ONCE = 4
#: The sum of a lane, one of the diagonal of C: of two sums that of an even or an odd row, 0 in three lanes of four.
_DIAGONAL = "tid % 4 == tid / 8 % 4 ? tid / 4 % 2 ? {1} : {0} : 0.0f"


def print_lane_product(node: LaneProduct, values: ValuePrinter, names: KernelNames, out: Writer) -> None:
    """Print the matrix instructions of lanes, and add their sums.

    Few rows at once have sums, independent of one another, in registers.
    """
    (row,) = node.rows or (Var("row", 1),)
    for first in range(0, row.extent, ROWS_AT_ONCE):
        _print_rows(node, row, range(first, min(first + ROWS_AT_ONCE, row.extent)), values, names, out)


def _print_rows(
    node: LaneProduct, row: Var, rows: range, values: ValuePrinter, names: KernelNames, out: Writer
) -> None:
    dialect, step = names.dialect, 2 * node.distance
    firsts = [n for n in range(node.axis.extent) if n % step < node.distance]
    sums = {n: [names.fresh() for _ in range(4)] for n in rows[::2]}
    for each in sums.values():
        out.line(f"{dialect.type(node.dtype)} {', '.join(f'{x} = 0.0f' for x in each)};")
    for number in range(0, len(firsts), 2):
        pair = [*firsts[number : number + 2], -1][:2]
        b = [_word(node.b, node, first, {}, values) for first in pair]
        for n, each in sums.items():
            places = [{row: r} if r in rows else None for r in (n, n + 1)]
            a = [_word(node.a, node, first, at, values) for first in pair for at in places]
            operands = ", ".join([*map(dialect.atom_result.format, each), *a, *b])
            out.line(dialect.instructions[node.instruction].format(operands=operands))
    for r in rows:
        held = names.register(node.name, tuple(substitute(index, {row: r}) for index in node.at))
        out.line(f"{held} += {_DIAGONAL.format(*sums[r // 2 * 2][r % 2 * 2 :])};")


def _word(value: Value, node: LaneProduct, first: int, at: Mapping[Var, int] | None, values: ValuePrinter) -> str:
    """Return the word of two numbers of an operand, 0 where there are none."""
    if first < 0 or at is None:
        return "0u"
    if isinstance(value, VectorLoad) and value.dtype is DType.U32:
        place = first % (2 * value.distance)
        word = values.element(value, {**at, node.axis: first - place})
        return values.names.dialect.instructions[unpacking_name(value)].format(x=word, place=place, zero=value.zero)
    numbers = (values.element(value, {**at, node.axis: n}) for n in (first, first + node.distance))
    return f"cuts_join_{value.dtype}({', '.join(numbers)})"


def unpacking_name(node: VectorLoad) -> str:
    """Return the conversion of the numbers of a loaded word."""
    if not node.bits:
        return f"{node.dtype}_of_{node.stored}x4"
    return f"{DType.BF16}x2_of_u{node.bits}" if node.dtype is DType.U32 else f"{DType.F32}_of_u{node.bits}"
