"""Numbers of few bits, converted as their words are loaded.

%0: u8 = window (load global q[4*t + w]) over (w) at (u // 2)
%1: u8 = (%0 >> 4 * (u % 2)) & 15                ->      %3: f32 = vector_load global q[4*t + u // 2] over u by (4)
%2: f32 = convert %1                                               of u8 bits 4 less 7
%3: f32 = %2 - 7.0
"""

from __future__ import annotations

from attrs import evolve

from ...ir import (
    BYTE_BITS,
    UNPACKED_BITS,
    Convert,
    DType,
    IndexNode,
    Literal,
    Load,
    Op,
    Value,
    VectorLoad,
    Window,
    as_index,
    substitute,
    substitute_guards,
    variables,
)
from .context import SelectionContext
from .vector_accesses import WORD_BYTES, select_vector_load

#: Largest integer that is subtracted from a number: differences are exact in all floats.
MAX_ZERO = 127
#: Types of the differences.
_FLOATS = (DType.F32, DType.F16, DType.BF16)


def select_bits(node: Value, context: SelectionContext) -> VectorLoad | None:
    """Return the load of converted numbers, less an integer if any."""
    zero = 0
    if isinstance(node, Op) and node.fn == "sub" and isinstance(node.args[1], Literal):
        number = float(node.args[1].value)
        if not number.is_integer() or abs(number) > MAX_ZERO:
            return None
        zero, node = int(number), node.args[0]
    if not isinstance(node, Convert) or node.dtype not in _FLOATS:
        return None
    found = _numbers(node.arg, context)
    return None if found is None else evolve(found, dtype=node.dtype, zero=zero)


def _numbers(node: Value, context: SelectionContext) -> VectorLoad | None:
    """Return the load of the bits of some neighbours."""
    if not isinstance(node, Op) or node.fn != "bitand" or not isinstance(node.args[1], Literal):
        return None
    shifted, mask = node.args[0], int(node.args[1].value)
    bits = mask.bit_length()
    known = bits in {UNPACKED_BITS[name] for name in context.instructions if name in UNPACKED_BITS}
    if not known or mask != (1 << bits) - 1 or not isinstance(shifted, Op) or shifted.fn != "shr":
        return None
    window, shift = shifted.args
    if not isinstance(window, Window) or not isinstance(window.load, Load) or len(window.axes) != 1:
        return None
    (word,), (place,), count = window.axes, window.at, BYTE_BITS // bits
    if not isinstance(shift, IndexNode) or window.dtype is not DType.U8:
        return None
    axis = next((v for v in variables(place) if v.extent == count * word.extent), None)
    if axis is None or place != as_index(axis) // count or shift.index != (as_index(axis) % count) * bits:
        return None
    load = select_vector_load(window.load, word, context)
    if load is None or any(n % WORD_BYTES for n in load.pieces):
        return None
    moved = {word: as_index(axis) // count}
    address, guards = substitute(load.address, moved), substitute_guards(load.guards, moved)
    return evolve(load, address=address, guards=guards, axis=axis, stored=load.dtype, bits=bits)
