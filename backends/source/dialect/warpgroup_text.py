"""Text of a warpgroup's matrix instructions, and of addresses in swizzled buffers.

CUDA C++ has the instruction; a template makes the descriptor's transposition a constant. OpenCL C has none: each thread
computes its elements of C from local memory by the descriptor's layout, as the instruction reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ....ir import (
    ELEMENT,
    HALF_BYTES,
    LANE,
    MMA_INSTRUCTIONS,
    WARPGROUP_THREAD,
    DType,
    Index,
    MmaInstruction,
    SharedBuffer,
    SharedMatrixLayout,
    as_index,
    substitute,
)
from ..index_ctext import PointerName, index_text
from .float8 import FLOATS8
from .mma_text import PTX_TYPES

#: Results of a lane in an exchange among the lanes of a row.
EXCHANGED_RESULTS = 8
#: Ends of the names of instructions that take their rows from registers, and of those that begin a sum.
HELD_ROWS, BEGINS = "_held_rows", "_begins"
#: Registers of a row that eight columns have, bytes of a descriptor's unit, and bytes of a row of all banks.
ROW_REGISTERS, UNIT_BYTES, ROW_BYTES = 2, 16, 128


def swizzled_text(index: Index, buffer: SharedBuffer, pointers: Mapping[str, PointerName]) -> str:
    """Return the place of an element in a swizzled buffer.

    Whole periods of the swizzle are added afterwards, so that constants of unrolled loops and stages remain constants.
    """
    size, rows = buffer.dtype.size, buffer.swizzle // UNIT_BYTES
    period = ROW_BYTES * rows // size
    whole = Index(index.const // period * period, tuple(t for t in index.terms if t[1] % period == 0))
    row, unit = ((n // size).bit_length() - 1 for n in (ROW_BYTES, UNIT_BYTES))
    inside = f"cuts_swizzled({index_text(index - whole, pointers)}, {row}, {rows - 1}, {unit})"
    return inside if whole == Index() else f"{inside} + {index_text(whole, pointers)}"


def swizzle_helper(qualifier: str) -> str:
    """Return the helper that permutes 16-byte units of 128-byte rows."""
    return (
        f"{qualifier} int cuts_swizzled(int i, int row, int mask, int unit) {{ return i ^ (i >> row & mask) << unit; }}"
    )


def exchange_helper(qualifier: str) -> str:
    """Return CUDA C++'s helper of an exchange among four lanes.

    Every `p`th of eight registers from `s` on takes part. Lanes whose numbers differ in one bit exchange pairs. The
    empty instructions at the end separate later selections from those of the exchange: merged, they spill.
    """
    return (
        f"template <int p> {qualifier} void cuts_exchange(float* s) {{\n  #pragma unroll\n"
        "  for (int d = 1; d < 4; d *= 2) {\n    const bool high = threadIdx.x & d;\n    #pragma unroll\n"
        "    for (int i = 0; i < 8; ++i) {\n      if (i / 2 & d) continue;\n"
        "      float& a = s[i * p]; float& b = s[(i + 2 * d) * p];\n"
        "      const float x = __shfl_xor_sync(0xffffffffu, high ? a : b, d);\n"
        "      if (high) a = x; else b = x;\n    }\n  }\n  #pragma unroll\n"
        '  for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(s[i * p]));\n}'
    )


def exchange_emulation(inline: str, meet: str) -> str:
    """Return OpenCL C's helper of such an exchange, through local memory."""
    return (
        f"{inline} void cuts_exchange(__local uint* m, float* s, int p, int tid) {{ const int t = tid % 32; "
        f"for (int i = 0; i < 8; ++i) m[t * 8 + i] = as_uint(s[i * p]); {meet} "
        f"for (int i = 0; i < 8; ++i) s[i * p] = as_float(m[(t / 4 * 4 + i / 2) * 8 + t % 4 * 2 + i % 2]); {meet} }}"
    )


def warpgroup_rows() -> tuple[MmaInstruction, ...]:
    """Return the instructions of a warpgroup."""
    return tuple(row for row in MMA_INSTRUCTIONS.values() if row.reads_shared)


def held_rows() -> tuple[MmaInstruction, ...]:
    """Return the instructions that take rows of floats from registers."""
    return tuple(row for row in warpgroup_rows() if row.held.is_float)


def held_rows_words(row: MmaInstruction) -> int:
    """Return the words of scratch in which a warp exchanges its rows."""
    return row.m // row.warps * row.k


def warpgroup_helper_name(row: MmaInstruction, columns: int | str) -> str:
    """Return the name of CUDA C++'s helper for a number of columns."""
    return f"cuts_{row.name.replace(f'n{row.n}', f'n{columns}')}"


def warpgroup_instructions(qualifier: str, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the helpers of CUDA C++ by name, one `wgmma` each.

    Halves may lie along either side; other numbers lie along k.

    Every `p`th register from `u` and from `l` on is one of a thread's upper and of its lower row.
    """
    yield (
        "cuts_matrix",
        f"{qualifier} unsigned long long cuts_matrix(const void* p, unsigned long long layout, unsigned offset) "
        "{ const unsigned low = (unsigned)layout + ((unsigned)__cvta_generic_to_shared(p) >> 4) + offset; "
        "return (layout & 0xffffffff00000000ull) | low; }",
    )
    for row in warpgroup_rows():
        for columns in row.columns:
            for held in (False, True)[: 1 + (row in held_rows())]:
                yield from _products(row, columns, held, qualifier, types)


def _products(
    row: MmaInstruction, columns: int, held: bool, qualifier: str, types: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the helpers that add a product to sums, and that begin these."""
    of_a, of_b, adds = (PTX_TYPES.get(t, t) for t in (*row.formats, row.accumulator.value))
    kind, constraint = types[row.accumulator.value], "f" if row.accumulator.is_float else "r"
    registers = [f"{x}[{ROW_REGISTERS * n + e} * p]" for n in range(columns // row.n) for x in "ul" for e in (0, 1)]
    count, shape = len(registers), f"m{row.m}n{columns}k{row.k}.{adds}.{of_a}.{of_b}"
    listed, out = ", ".join(f"%{n}" for n in range(count)), ", ".join(f'"+{constraint}"({x})' for x in registers)
    taken, word = _held_values(row) if held else (['"l"(a)'], "unsigned long long a")
    rows, after = ", ".join(f"%{count + n}" for n in range(len(taken))), count + len(taken)
    majors = ["tb"] if held else ["ta", "tb"]
    turned = majors if row.held.size == HALF_BYTES else []
    flags = ", 1, 1" * row.accumulator.is_float + "".join(f", %{after + 1 + n}" for n in range(len(turned)))
    into = ", ".join([*taken, '"l"(b)', *(f'"n"({x})' for x in turned)])
    for end, adding in (("", 1), (BEGINS, 0)):
        name = warpgroup_helper_name(row, columns) + HELD_ROWS * held + end
        operands = f"{{{listed}}}, {f'{{{rows}}}' if held else rows}, %{after}, {adding}{flags}"
        yield (
            name,
            f"template <{', '.join(f'int {x}' for x in (*majors, 'p'))}> {qualifier} "
            f"void {name}({kind}* u, {kind}* l, {word}, unsigned long long b) "
            f'{{ asm volatile("wgmma.mma_async.sync.aligned.{shape} {operands};" : {out} : {into}); }}',
        )


def _held_values(row: MmaInstruction) -> tuple[list[str], str]:
    """Return the operands of rows in registers, and the parameter that they are taken from."""
    assert row.held_a is not None, "an instruction of a warpgroup"
    word, value = ("float", "__float_as_uint(a[{}])") if row.held is DType.F32 else ("unsigned", "a[{}]")
    return [f'"r"({value.format(n)})' for n in range(row.held_a.registers)], f"const {word}* a"


def descriptor_text(layout: SharedMatrixLayout, name: str, start: Index) -> str:
    """Return the descriptor of a buffer's matrix in CUDA C++.

    Only its low half depends on the address.
    """
    unit = UNIT_BYTES // layout.size
    assert all(f % unit == 0 for _, f in start.terms) and start.const % unit == 0, "matrices begin at whole units"
    offset = Index(start.const // unit, tuple((p, f // unit) for p, f in start.terms))
    return f"cuts_matrix({name}, {layout.descriptor:#x}ull, {index_text(offset, {})})"


#: Element at the byte {1} of the matrix {0} as a number of an instruction's format, in OpenCL C.
_ELEMENT_TEXTS = {
    "tf32": "cuts_tf32_cut(as_float(*(const __local uchar4*)({0} + {1})))",
    "f16": "cuts_low_f16(as_ushort(*(const __local uchar2*)({0} + {1})))",
    "bf16": "cuts_low_bf16(as_ushort(*(const __local uchar2*)({0} + {1})))",
    **{name: f"cuts_from_{name}(*({{0}} + {{1}}))" for name in FLOATS8},
    "i8": "(int)*(const __local char*)({0} + {1})",
    "u8": "(int)*({0} + {1})",
}


#: A sum of the emulation, to which terms are added one by one, as by that of instructions of a warp.
_EMULATED_SUM = "(i / 2 ? l : u)[(n / 4 + i % 2) * p]"


def warpgroup_emulations(qualifier: str, types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the helpers of OpenCL C by name.

    A matrix is its memory, the byte at which it begins, leading and stride byte offset, bytes of a swizzle, and whether
    it is K-major.
    """
    yield (
        "cuts_matrix_place",
        f"{qualifier} int cuts_matrix_place(int r, int k, int start, int lead, int stride, int width, int deep, "
        "int size) "
        "{ const int line = width ? width : 16; int x = start; "
        "if (deep) x += r / 8 * stride + k * size / line * lead + r % 8 * line + k * size % line; "
        "else if (width) x += r * size / line * lead + k / 8 * stride + k % 8 * line + r * size % line; "
        "else x += r / 8 * stride + k / 8 * lead + k % 8 * 16 + r % 8 * size; "
        "return width ? x ^ ((x >> 7) & (width / 16 - 1)) << 4 : x; }",
    )
    place = "cuts_matrix_place({0}, k, {1}s, {1}lead, {1}stride, {1}width, {1}deep, {2})"
    for row in warpgroup_rows():
        size, kind = row.held.size, types[row.accumulator.value]
        matrix = "const __local uchar* {0}, int {0}s, int {0}lead, int {0}stride, int {0}width, int {0}deep"
        parameters = f"{kind}* u, {kind}* l, int tid, int columns, int p, {matrix.format('a')}, {matrix.format('b')}"
        at = {WARPGROUP_THREAD: as_index(WARPGROUP_THREAD), ELEMENT: as_index(ELEMENT)}
        r, c = (index_text(substitute(x, at), {}) for x in (row.c.row, row.c.column))
        sides = zip(row.formats, "ab", "rc", strict=True)
        a, b = (_ELEMENT_TEXTS[f].format(m, place.format(x, m, size)) for f, m, x in sides)
        for end, before in (("", _EMULATED_SUM), (BEGINS, "0")):
            yield (
                f"cuts_{row.name}{end}",
                f"{qualifier} void cuts_{row.name}{end}({parameters}) {{ "
                f"const int t = tid % {WARPGROUP_THREAD.extent}; "
                f"for (int n = 0; n < columns; n += {row.n}) for (int i = 0; i < {row.c.size}; ++i) {{ "
                f"const int r = {r}, c = n + {c}; {kind} s = {before}; "
                f"for (int k = 0; k < {row.k}; ++k) s += {a} * {b}; {_EMULATED_SUM} = s; }} }}",
            )


def _packed_value(row: MmaInstruction, number: int) -> str:
    """Return a number of a lane's fragment of rows in OpenCL C."""
    if row.held.size == HALF_BYTES:
        return f"cuts_{('low', 'high')[number % 2]}_{row.format}(a[{number // 2}])"
    return f"cuts_from_{row.format}(a[{number // 4}] >> {8 * (number % 4)} & 0xffu)"


def held_rows_emulations(inline: str, types: Mapping[str, str], meet: str) -> Iterator[tuple[str, str]]:
    """Yield the helpers of OpenCL C whose rows lie in registers.

    The lanes of a warp exchange them in local memory.
    """
    for row in held_rows():
        assert row.held_a is not None, "an instruction of a warpgroup"
        kind, size, whole = types[row.accumulator.value], row.held.size, row.held is DType.F32
        stores = []
        for n in range(row.held_a.size):
            at = {LANE: as_index(LANE), ELEMENT: as_index(n)}
            r, k = (index_text(substitute(x, at), {}) for x in (row.held_a.row, row.held_a.column))
            value = f"cuts_{row.format}_cut(a[{n}])" if whole else _packed_value(row, n)
            stores.append(f"m[({r}) * {row.k} + {k}] = {value};")
        place = f"cuts_matrix_place(c, k, bs, blead, bstride, bwidth, bdeep, {size})"
        b = _ELEMENT_TEXTS[row.formats[1]].format("b", place)
        for end, before in (("", _EMULATED_SUM), (BEGINS, "0")):
            name, word = f"cuts_{row.name}{HELD_ROWS}{end}", "float" if whole else "uint"
            yield (
                name,
                f"{inline} void {name}(__local float* m, {kind}* u, {kind}* l, int tid, int columns, int p, "
                f"const {word}* a, const __local uchar* b, int bs, int blead, int bstride, int bwidth, int bdeep) "
                f"{{ const int t = tid % {LANE.extent}; {' '.join(stores)} {meet} "
                f"for (int n = 0; n < columns; n += {row.n}) for (int i = 0; i < {row.c.size}; ++i) {{ "
                f"const int r = t / 4 + i / 2 * 8, c = n + t % 4 * 2 + i % 2; {kind} s = {before}; "
                f"for (int k = 0; k < {row.k}; ++k) s += m[r * {row.k} + k] * {b}; "
                f"{_EMULATED_SUM} = s; }} {meet} }}",
            )


def emulated_matrix(layout: SharedMatrixLayout, name: str, start: Index) -> str:
    """Return the parameters of a matrix for the emulation."""
    first = index_text(start * layout.size, {})
    numbers = (layout.leading, layout.stride, layout.swizzle, int(layout.deep))
    return f"(const __local uchar*){name}, {first}, {', '.join(map(str, numbers))}"
