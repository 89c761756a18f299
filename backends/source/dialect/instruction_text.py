"""Text of instructions in each dialect, by row.

The rows are those of `ir.machine.instructions` and `ir.machine.matrix_instructions`.

A template calls a helper. Its fields are the operands: {registers} and the address {p}[{i}] of a row for a load of
fragments; destination {d}[{di}], source {s}[{si}] and condition {ok} for a copy; {operands} for a matrix instruction;
{element} and {values} for additions to memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....ir import (
    COPIES,
    LANE_PRODUCTS,
    MATRIX_LOADS,
    MIN_COPY_BYTES,
    MMA_INSTRUCTIONS,
    VECTOR_ADDITIONS,
    WIDEST_BYTES,
    WORD_EXTREMES,
    CopyInstruction,
    DType,
    MatrixLoadInstruction,
)
from .byte_conversions import CONVERSION_TEXTS
from .mma_text import operand_words
from .warpgroup_text import BEGINS, HELD_ROWS, held_rows, held_rows_words, warpgroup_helper_name, warpgroup_rows


def _matrix_helper(row: MatrixLoadInstruction) -> str:
    suffix = "_f32" if row.dtype is DType.F32 else "_turned" * row.transposed
    return f"cuts_matrix{row.count}{suffix}"


def _copy_helper(row: CopyInstruction) -> str:
    return f"cuts_copy{row.nbytes}{'_cached' * row.l1}"


def matrix_load_helpers(qualifier: str) -> dict[str, str]:
    """Return the helpers of CUDA C++ that load matrices, by name."""
    found = {}
    for row in MATRIX_LOADS.values():
        names = [f"d{n}" for n in range(row.count)]
        kind, constraint = ("float", "f") if row.dtype is DType.F32 else ("unsigned", "r")
        listed, out = ", ".join(f"%{n}" for n in range(row.count)), ", ".join(f'"={constraint}"({d})' for d in names)
        word = ".trans" * row.transposed
        text = f"ldmatrix.sync.aligned.m8n8.x{row.count}{word}.shared.b16 {{{listed}}}, [%{row.count}];"
        name = _matrix_helper(row)
        found[name] = (
            f"{qualifier} void {name}({', '.join(f'{kind}& {d}' for d in names)}, const void* p) {{ "
            f'asm volatile("{text}" : {out} : "r"((unsigned)__cvta_generic_to_shared(p)) : "memory"); }}'
        )
    return found


def copy_helpers(qualifier: str) -> dict[str, str]:
    """Return the helpers of CUDA C++ that copy asynchronously, by name."""
    found = {}
    for row in COPIES.values():
        if row.nbytes < MIN_COPY_BYTES:
            continue
        cache = "cg" if row.nbytes == WIDEST_BYTES and not row.l1 else "ca"
        address = f'"r"((unsigned)__cvta_generic_to_shared(d)), "l"(s), "r"(ok ? {row.nbytes} : 0)'
        text = f"cp.async.{cache}.shared.global [%0], [%1], {row.nbytes}, %2;"
        name = _copy_helper(row)
        found[name] = (
            f"{qualifier} void {name}(void* d, const void* s, bool ok) {{\n"
            f'  asm volatile("{text}" ::{address} : "memory");\n}}'
        )
    return found


def addition_helpers(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that add neighbours to global memory.

    Targets before sm_90 add them one by one.
    """
    found: dict[str, str] = {}
    for name, width in VECTOR_ADDITIONS.items():
        values = [f"v{n}" for n in range(width)]
        places, given = ", ".join(f"%{n + 1}" for n in range(width)), ", ".join(f'"f"({v})' for v in values)
        found[f"cuts_{name}"] = (
            f"{qualifier} void cuts_{name}(float* p, {', '.join(f'float {v}' for v in values)}) {{\n"
            "#if __CUDA_ARCH__ >= 900\n"
            f'  asm volatile("red.global.add.v{width}.f32 [%0], {{{places}}};" :: "l"(p), {given} : "memory");\n'
            "#else\n"
            f"  {' '.join(f'atomicAdd(p + {n}, {v});' for n, v in enumerate(values))}\n"
            "#endif\n}"
        )
    return found


def extreme_helpers(qualifier: str) -> Mapping[str, str]:
    """Return the helpers that compare the bytes of two words.

    Halves of words are compared by their high bytes. From sm_90 on one instruction compares two of them.
    """
    found: dict[str, str] = {}
    for name, (combine, dtype) in WORD_EXTREMES.items():
        halves = f"__v{combine}{'s' if dtype.element.kind == 'signed' else 'u'}2"
        body = f"return __byte_perm({halves}(a << 8, b << 8), {halves}(a, b), 0x7351);"
        found[f"cuts_{name}"] = f"{qualifier} unsigned cuts_{name}(unsigned a, unsigned b) {{ {body} }}"
    return found


#: Text of the instructions of CUDA C++. Copies that are too narrow move one element.
CUDA_INSTRUCTIONS: Mapping[str, str] = {
    **{name: f"{_matrix_helper(row)}({{registers}}, &{{p}}[{{i}}]);" for name, row in MATRIX_LOADS.items()},
    **{name: f"{_copy_helper(row)}(&{{d}}[{{di}}], &{{s}}[{{si}}], {{ok}});" for name, row in COPIES.items()},
    **{name: "{d}[{di}] = {ok} ? {s}[{si}] : 0;" for name, row in COPIES.items() if row.nbytes < MIN_COPY_BYTES},
    **{name: f"cuts_{name}({{operands}});" for name, row in MMA_INSTRUCTIONS.items() if not row.reads_shared},
    **{name: f"cuts_{name}({{operands}});" for name in LANE_PRODUCTS},
    **{name: f"cuts_{name}({{element}}, {{values}});" for name in VECTOR_ADDITIONS},
    **CONVERSION_TEXTS,
    **{name: f"cuts_{name}({{0}}, {{1}})" for name in WORD_EXTREMES},
    **{
        row.name + end: warpgroup_helper_name(row, "{columns}")
        + end
        + "<{turned}, {pitch}>({upper}, {lower}, {a}, {b});"
        for row in warpgroup_rows()
        for end in ("", BEGINS)
    },
    **{
        row.name + HELD_ROWS + end: warpgroup_helper_name(row, "{columns}")
        + HELD_ROWS
        + end
        + "<{turned}, {pitch}>({upper}, {lower}, &{a}, {b});"
        for row in held_rows()
        for end in ("", BEGINS)
    },
}

#: Text of the instructions of OpenCL C: emulations over a scratch of each warp.
OPENCL_INSTRUCTIONS: Mapping[str, str] = {
    **{
        name: f"cuts_{name}((__local void*)&atom_scratch[tid / 32 * {operand_words(row)}], tid, {{operands}});"
        for name, row in MMA_INSTRUCTIONS.items()
        if not row.reads_shared
    },
    **{
        name: f"cuts_m16n8k16_{dtype}((__local void*)&atom_scratch[tid / 32 * "
        f"{operand_words(MMA_INSTRUCTIONS[f'm16n8k16_{dtype}'])}], tid, {{operands}});"
        for name, dtype in LANE_PRODUCTS.items()
    },
    **{
        row.name + end: f"cuts_{row.name}{end}({{upper}}, {{lower}}, tid, {{columns}}, {{pitch}}, {{a}}, {{b}});"
        for row in warpgroup_rows()
        for end in ("", BEGINS)
    },
    **{
        row.name + HELD_ROWS + end: f"cuts_{row.name}{HELD_ROWS}{end}((__local void*)&atom_scratch[tid / 32 * "
        f"{held_rows_words(row)}], {{upper}}, {{lower}}, tid, {{columns}}, {{pitch}}, &{{a}}, {{b}});"
        for row in held_rows()
        for end in ("", BEGINS)
    },
}
