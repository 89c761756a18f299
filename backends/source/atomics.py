"""Helpers of kernels that atomically combine a value with memory.

    cuts_into_max_f32(&p0[i], v);    // p0[i] = max(p0[i], v)
    cuts_meet_max_f32(&bins[i], v);  // the same in shared memory
    cuts_into_append_u32(p0, i);     // p0[i]++, the place of a value that is appended

Where the language has an instruction for it, the helper is that. Else it is a compare-and-swap loop over the word that
holds the element; a word holds several elements of narrow types. The function itself is that of the table, so that NaN,
wraparound and the order of zeros are those of every other kernel. Extremes of floats are those of integers in the same
order where the table's function returns a changed value that is a number: as integers a NaN whose sign bit is set,
which x86 produces, would be lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from math import prod

from attrs import evolve

from ...ir import (
    APPEND,
    COMBINERS,
    DType,
    Literal,
    Load,
    Op,
    Store,
    Var,
    as_index,
    indirects,
    linearise,
    row_major,
    substitute,
)
from .ctext import call_text, number_text
from .dialect import Dialect
from .index_ctext import guard_text, index_text, place_text
from .scope import KernelNames, Writer

_HELPER = re.compile(r"cuts_(into|meet)_(\w+)_([a-z0-9]+)$")


def combining_helpers(used: Iterable[str], dialect: Dialect) -> tuple[str, frozenset[str]]:
    """Return a kernel's atomic helpers, and the names that they use."""
    wanted = sorted({name for name in used if _HELPER.match(name)})
    kinds = [(match[0], match[1], match[2], match[3]) for name in wanted if (match := _HELPER.match(name))]
    widths = sorted({max(4, DType(dtype).size) for *_, dtype in kinds})
    lines = [dialect.atomics.enable[width] for width in widths if width in dialect.atomics.enable]
    lines += [line for kind in kinds for line in _helper(*kind, dialect)]
    text = "".join(f"{line}\n" for line in lines)
    return text, frozenset(re.findall(r"\bcuts_\w+", text)) - {*wanted}


def _helper(name: str, space: str, into: str, text: str, dialect: Dialect) -> Iterator[str]:
    atomics, dtype = dialect.atomics, DType(text)
    memory, register = dialect.memory_type(dtype), dialect.type(dtype)
    shared = space == "meet"
    pointer = atomics.shared_pointer if shared else atomics.pointer
    result, argument = (register, "int i") if into == APPEND else ("void", f"{register} v")
    yield f"{atomics.qualifier} {result} {name}({pointer.format(type=memory)} p, {argument}) {{"
    native = (atomics.shared_native if shared else {}).get(f"{into}_{text}") or atomics.native.get(f"{into}_{text}")
    if native:
        yield f"  {native}"
    else:
        yield from _exchange(into, dtype, pointer, dialect)
    yield "}"


def _exchange(into: str, dtype: DType, pointer: str, dialect: Dialect) -> Iterator[str]:
    """Yield the compare-and-swap loop; an unchanged value is not written."""
    atomics, width = dialect.atomics, max(4, dtype.size)
    word, exchange = atomics.words[width]
    memory = dialect.memory_type(dtype)
    held = dialect.shared_bits.get(memory, memory)
    element = {"p": f"(({memory}*)x.e)", "i": "k"}
    old = dialect.load.get(dtype.value, "{p}[{i}]").format(**element)
    store = dialect.store.get(dtype.value, "{p}[{i}] = {v};")
    combined = call_text(COMBINERS[into].fn, ("a", "v"), dtype, dialect)
    words = pointer.format(type=word)
    yield f"  const size_t at = (size_t)p; const int k = (int)(at % {width}) / {dtype.size};"
    yield f"  {words} w = ({words})(at - at % {width});"
    yield f"  union {{ {word} bits; {held} e[{width // dtype.size}]; }} x;"
    yield f"  {word} seen, next = *w;"
    yield "  do {"
    yield f"    x.bits = seen = next; const {dialect.type(dtype)} a = {old};"
    yield f"    {store.format(**element, v=combined)}"
    yield "    if (x.bits == seen) break;"
    yield f"    next = {exchange}(w, seen, x.bits);"
    yield "  } while (next != seen);"


def print_atomic_update(
    node: Store, values: Sequence[str], rest: tuple[Var, ...], names: KernelNames, out: Writer
) -> None:
    """Print the atomic operation that combines values with memory.

    Those of a box first compute all their addresses, -1 for none, then run one after another; values that are appended
    first take all their places. A value that is selected instead of the identity is looked up and sent only where it
    differs, and so is a bin.
    """
    if node.axis is not None:
        node, rest = (
            evolve(node, address=substitute(node.address, {node.axis: 0})),
            tuple(v for v in rest if v != node.axis),
        )
    place = index_text(node.address, names.pointers)
    exists = " && ".join(part for part in (_matters(node, values, names), _exists(node, names)) if part)
    if node.into == APPEND:
        place = f"(int)cuts_into_append_{node.dtype}({names.buffer(node.space, node.buffer)}, {place})"
    elif not rest:
        out.line((f"if ({exists}) " if exists else "") + _call(node, values, place, names))
        return
    places = names.fresh()
    at = index_text(linearise([as_index(v) for v in rest], row_major(tuple(v.extent for v in rest))), {})
    out.line(f"int {places}[{prod(v.extent for v in rest)}];")
    with out.loops(rest):
        out.line(f"{places}[{at}] = {f'{exists} ? {place} : -1' if exists else place};")
    with out.loops(rest):
        condition = f"if ({places}[{at}] >= 0) " if exists else ""
        if node.into == APPEND:
            condition = f"if ((unsigned int){places}[{at}] < {node.size}) "
        out.line(condition + _call(node, values, f"{places}[{at}]", names))


def _matters(node: Store, values: Sequence[str], names: KernelNames) -> str:
    """Return the condition that a value changes an element, empty where most values do."""
    value, identity = node.value, COMBINERS[str(node.into)].identity(node.dtype)
    chosen = isinstance(value, Op) and value.fn == "select" and value.args[2] == Literal(identity, value.dtype)
    held = isinstance(value, Load) and value.space == "shared"
    return f"{values[0]} != {number_text(identity, node.dtype, names.dialect)}" if chosen or held else ""


def _exists(node: Store, names: KernelNames) -> str:
    """Return the condition that the element of a value exists, empty where it always does."""
    parts = [guard_text(node.guards, names.pointers)] if node.guards else []
    parts += [place_text(place, names.pointers) for place in dict.fromkeys(indirects(node.address)) if place.wraps]
    return " && ".join(parts)


def _call(node: Store, values: Sequence[str], place: str, names: KernelNames) -> str:
    """Return the call that combines values with elements."""
    element = f"&{names.buffer(node.space, node.buffer)}[{place}]"
    if node.axis is not None:
        row = names.dialect.instructions[f"{node.into}_{node.dtype}x{node.axis.extent}"]
        return row.format(element=element, values=", ".join(values))
    (value,) = values
    if node.into == APPEND:
        return f"{names.buffer(node.space, node.buffer)}[{place}] = {value};"
    helper = "into" if node.space == "global" else "meet"
    return f"cuts_{helper}_{node.into}_{node.dtype}({element}, {value});"
