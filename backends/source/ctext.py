"""C text of indices, literals, loads and scalar functions, in either dialect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import frozen

from ...ir import FUNCTIONS, Clamp, DType, FloorDiv, Guard, Index, Indirect, Literal, Mod, Var
from .arithmetic import unsigned_of
from .dialects import Dialect


@frozen
class PointerName:
    """A buffer's name in a kernel's text, and the type of its elements."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


def index_text(index: Index, pointers: Mapping[str, PointerName], *, raw: bool = False) -> str:
    """Return an index as a C expression of type int; `pointers` names the buffers of indirect reads.

    An integer of a tensor that is no index of its axis counts as the nearest one, so that no address leaves its tensor;
    where it is compared (`raw`) it stays what it is, and equals nothing.
    """
    parts: list[str] = []
    for atom, factor in sorted(index.terms, key=lambda term: -abs(term[1])):
        text = _atom_text(atom, pointers, raw)
        body = text if abs(factor) == 1 else f"{text} * {abs(factor)}"
        sign = "-" if factor < 0 else ("+ " if parts else "")
        parts.append(f"{sign}{' ' if sign == '-' and parts else ''}{body}")
    if index.const or not parts:
        sign = "" if not parts else ("+ " if index.const > 0 else "- ")
        parts.append(f"{sign}{abs(index.const) if parts else index.const}")
    return " ".join(parts)


def _atom_text(atom: object, pointers: Mapping[str, PointerName], raw: bool) -> str:
    if isinstance(atom, Var):
        return atom.name
    if isinstance(atom, FloorDiv):
        quotient = f"({_unsigned(atom.num, atom.den, pointers, raw)} / {atom.den})"
        shift = _shift(atom.num, atom.den)
        return f"({quotient} - {shift})" if shift else quotient
    if isinstance(atom, Mod):
        return f"({_unsigned(atom.num, atom.den, pointers, raw)} % {atom.den})"
    if isinstance(atom, Clamp):
        return f"cuts_clamp({index_text(atom.arg, pointers, raw=raw)}, {atom.low}, {atom.high})"
    assert isinstance(atom, Indirect)
    (flat,) = atom.indices
    element = f"{pointers[atom.tensor]}[{index_text(flat, pointers)}]"
    if not atom.wraps:
        return f"((int){element})"
    suffix = index_suffix(pointers[atom.tensor].dtype)
    return f"{'cuts_wrap' if raw else 'cuts_index'}{suffix}({element if suffix else f'(int){element}'}, {atom.extent})"


def index_suffix(dtype: DType) -> str:
    """Return what names the helpers for indices of an element type: those that no int holds have their own."""
    return "" if dtype.size < 4 or dtype is DType.I32 else f"_{dtype}"


def _shift(index: Index, divisor: int) -> int:
    """Multiples of the divisor to add so that a numerator is never negative: C divides towards zero."""
    low, _ = index.bounds()
    return 0 if low >= 0 else -(low // divisor)


def _unsigned(index: Index, divisor: int, pointers: Mapping[str, PointerName], raw: bool) -> str:
    return f"({index_text(index + _shift(index, divisor) * divisor, pointers, raw=raw)})"


def guard_text(guards: Sequence[Guard], pointers: Mapping[str, PointerName]) -> str:
    """Return a conjunction of range conditions, leaving out bounds that the variables' ranges prove."""
    parts: list[str] = []
    for guard in guards:
        low, high = guard.index.bounds()
        text = index_text(guard.index, pointers, raw=True)
        if low < guard.low:
            parts.append(f"{text} >= {guard.low}")
        if high >= guard.high:
            parts.append(f"{text} < {guard.high}")
    return " && ".join(parts) or "1"


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
        return "(0.0f / 0.0f)"
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
    template = function.c_int if function.c_int and not dtype.is_float else function.c
    if function.wraps and dtype.is_int:
        return _wrapped(template, args, dtype, dialect)
    return dialect.math(template, dtype).format(*args, t=dtype.arithmetic)


def _wrapped(template: str, args: Sequence[str], dtype: DType, dialect: Dialect) -> str:
    """Return an operator on integers that wraps: C leaves open what a signed overflow is, and computes narrow types as
    int.
    """
    unsigned = unsigned_of(dtype)
    if dtype is unsigned:
        return template.format(*args)
    return f"(({dialect.type(dtype)}){template.format(*(f'({dialect.type(unsigned)}){a}' for a in args))})"
