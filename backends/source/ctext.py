"""C text of literals and scalar functions, in either dialect."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...ir import FUNCTIONS, DType, Literal
from .dialect import Dialect, unsigned_of


def literal_text(node: Literal, dialect: Dialect) -> str:
    """Return a constant that reads back as exactly the same value."""
    return number_text(node.value, node.dtype, dialect)


def number_text(value: float | int | bool, dtype: DType, dialect: Dialect) -> str:
    """Return a number of an element type as C text."""
    if dtype is DType.BOOL:
        return "1" if value else "0"
    if dtype.is_int:
        return _integer_text(int(value), dtype)
    number = float(value)
    if math.isnan(number):
        return "cuts_nan()"
    if math.isinf(number):
        text = "cuts_inf()" if number > 0 else "(-cuts_inf())"
        # A function of a float and a double is ambiguous in OpenCL C.
        return f"(({dialect.type(dtype)}){text})" if dtype is DType.F64 else text
    if dtype is DType.F64:
        return repr(number)
    text = f"{number:.9g}"
    return f"{text if '.' in text or 'e' in text else text + '.0'}f"


def _integer_text(value: int, dtype: DType) -> str:
    assert dtype.holds(value), f"{value} is no value of element type {dtype}"
    suffix = {"i64": "L", "u64": "UL", "u32": "U"}.get(dtype.value, "")
    if value == dtype.element.lowest and value < 0 and dtype.size >= 4:
        return f"({value + 1}{suffix} - 1)"  # C has no negative literals, and none of this magnitude
    return f"({value}{suffix})" if value < 0 else f"{value}{suffix}"


def call_text(fn: str, args: Sequence[str], dtype: DType, dialect: Dialect) -> str:
    """Return a scalar function applied to texts; `dtype` is the operands' type."""
    function = FUNCTIONS[fn]
    half = dtype.arithmetic is not dtype
    template = (function.c_half if half else "") or function.c if dtype.is_float else function.c_int or function.c
    if function.wraps and dtype.is_int:
        return _wrapping_text(template, args, dtype, dialect)
    return dialect.math(template, dtype).format(*args, t=dtype.arithmetic)


def convert_text(text: str, old: DType, new: DType, dialect: Dialect) -> str:
    """Return a value of one element type as one of another."""
    if new is DType.BOOL:
        return f"({text} != 0)"
    if new.is_int and old.is_float:
        return f"cuts_{new}_of_{old.arithmetic}({text})"
    if (helper := f"cuts_{new.arithmetic if old.is_int else new}_of_{old}") in dialect.helpers:
        return f"{helper}({text})"
    return f"(({dialect.type(new)}){text})"


def _wrapping_text(template: str, args: Sequence[str], dtype: DType, dialect: Dialect) -> str:
    """Return a wrapping operator on integers: C does not define signed overflow, and computes narrow types as int."""
    unsigned = unsigned_of(dtype)
    if dtype is unsigned:
        return template.format(*args)
    return f"(({dialect.type(dtype)}){template.format(*(f'({dialect.type(unsigned)}){a}' for a in args))})"
