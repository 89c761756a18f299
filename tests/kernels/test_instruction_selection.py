"""Instruction selection: kernel IR before and after, and lane maps."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from itertools import product

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.dialect.byte_conversions import OF_SUMS
from cuts.backends.source.dialect.dialects import DIALECTS
from cuts.backends.source.dialect.warpgroup_text import BEGINS, HELD_ROWS
from cuts.ir import evaluate, parse_ir, phases, print_ir
from cuts.ir.affine import Index, Var, variables
from cuts.ir.dfg import (
    AsyncCopy,
    DfgNode,
    LdMatrix,
    Load,
    MmaAccumulate,
    Pack,
    RegisterWrite,
    VectorStore,
    operand_nodes,
)
from cuts.ir.kernel import Kernel
from cuts.ir.machine import COPIES, INSTRUCTIONS, MATRIX_LOADS, MATRIX_ROWS, MATRIX_WORDS, ROW_BYTES
from cuts.ir.verify.dfg import check_instructions_known, check_vectors_whole
from cuts.ir.verify.kernel import kernel_violations
from cuts.passes.instructions import select_instructions
from cuts.passes.lowering import extract, lower
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from .test_matrix_instructions import _SUPPRESSED_CHECKS, MODES, atom_points, groups

GPU = find_target("cuda:sm_90")

KERNEL = """
var tid < 32, u < 4, v < 6

kernel blocks 1 threads 32 {
  reads x
  writes y
  dtype x: f32
  dtype y: f32
  aligned x: 16
  aligned y: 16
  buffer s: f32[256]
  %s {
    %s
  }
}
"""


def select_phase(phase: str, lines: str, dialect: str = "cuda") -> str:
    """Return the head and the lines of one phase after selection."""
    kernel = parse_ir(KERNEL % (phase, lines))
    found = select_instructions(kernel, dialect)
    assert kernel_violations(kernel, threads=True) == kernel_violations(found, threads=True) == []
    assert parse_ir(print_ir(found)) == found
    text = print_ir(found)
    return "\n".join(line.strip() for line in text[text.index("phase") :].splitlines()[:-2])


COPY = "%0: f32 = load global x[4*tid + u]\nstore shared s[4*tid + u]: f32 = %0"


def test_neighbours_of_a_thread_move_as_vectors() -> None:
    assert select_phase("phase exit p unroll u", COPY.replace("shared s", "global y")) == (
        "phase exit p unroll u {\n"
        "%0: f32 = vector_load global x[4*tid + u] over u by (4)\n"
        "vector_store global y[4*tid + u]: f32 = %0 over u by 4"
    )


def test_guards_of_whole_vectors_lose_the_axis() -> None:
    lines = "%0: f32 = load global x[4*tid + u] if 0 <= 4*tid + u < 96 else 2\nstore global y[4*tid + u]: f32 = %0"
    assert "over u by (4) if 0 <= 4*tid < 96 else 2" in select_phase("phase exit p unroll u", lines)
    assert "vector_load" not in select_phase("phase exit p unroll u", lines.replace("96", "95"))


@pytest.mark.parametrize("place", ["6*tid + u", "10*((2*tid + (u // 2)) % 7) + (u % 2)"])
def test_stores_across_rows_are_shorter_vectors(place: str) -> None:
    lines = f"%0: f32 = load global x[4*tid + u]\nstore global y[{place}]: f32 = %0"
    assert "over u by 2" in select_phase("phase exit p unroll u", lines).splitlines()[-1]


def test_elements_of_an_odd_pitch_move_singly() -> None:
    assert "vector" not in select_phase(
        "phase exit p unroll u", COPY.replace("shared s", "global y").replace("4*t", "5*t")
    )


def test_asynchronous_copies_are_one_node() -> None:
    assert select_phase("phase fetch p async unroll u", COPY) == (
        "phase fetch p async unroll u scopes u {\nasync_copy cp_async_16 s[4*tid + u]: f32 = x[4*tid + u] over u by 4"
    )
    assert "async_copy cp_async_16_cached" in select_phase("phase fetch p async l1 unroll u", COPY)
    assert "async_copy cp_async_4 s" in select_phase("phase fetch p async unroll u", COPY.replace("4*tid", "5*tid"))


def test_a_failed_guard_of_the_source_copies_zeros() -> None:
    lines = COPY.replace("u]\n", "u] if 0 <= tid < 20 else 0\n")
    assert "by 4 valid 0 <= tid < 20" in select_phase("phase fetch p async unroll u", lines)
    both = lines + " if 0 <= tid < 20"
    assert select_phase("phase fetch p async unroll u", both).endswith("by 4 if 0 <= tid < 20")


def test_neighbours_are_added_at_once() -> None:
    lines = COPY.replace("shared s[4*tid + u]", "global y[4*tid + u] into sum")
    assert select_phase("phase exit p unroll u", lines).endswith("into sum: f32 = %0 over u")
    for other in (lines.replace("sum", "max"), lines.replace("4*tid", "5*tid")):
        assert "over u" not in select_phase("phase exit p unroll u", other).splitlines()[-1]
    assert "over u" not in select_phase("phase exit p unroll u", lines, "opencl").splitlines()[-1]


def test_opencl_copies_by_vectors() -> None:
    found = select_phase("phase fetch p async unroll u", COPY, "opencl")
    assert "async_copy" not in found and "vector_load" in found and "vector_store" in found


def test_windows_are_loaded_in_pieces() -> None:
    lines = "%0: f32 = load global x[4*tid + v + 3]\n%1: f32 = window %0 over (v) at (u + 1)\n"
    found = select_phase("phase compute p unroll u, v", lines + "store global y[4*tid + u]: f32 = %1")
    assert "vector_load global x[4*tid + v + 3] over v by (1, 4, 1)" in found


def test_reduced_variables_without_vectors_are_scopes() -> None:
    lines = "%0: f32 = load global x[{}]\ninitialise a[1]: f32 for sum\naccumulate a[0]: f32 = sum of %0 over (u)"
    assert "scopes" not in select_phase("phase compute p unroll u", lines.format("4*tid + u"))
    assert "scopes u" in select_phase("phase compute p unroll u", lines.format("tid + 32*u"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_has_the_text_of_its_instructions(dialect: str) -> None:
    ends = (BEGINS, HELD_ROWS, OF_SUMS)
    named = {reduce(str.removesuffix, ends, name) for name in DIALECTS[dialect].instructions}
    assert named == INSTRUCTIONS[dialect]


@settings(max_examples=examples(20, 300), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(st.data())
def test_lanes_get_the_elements_of_their_fragments(data: st.DataObject) -> None:
    """Registers of loaded matrices hold the elements of plain loads."""
    group = data.draw(groups(tuple(MODES)))
    before = extract(lower(group, data.draw(atom_points(group, GPU)), {}, GPU))
    after = select_instructions(before, "cuda")
    assert kernel_violations(after, threads=True) == []
    assert parse_ir(print_ir(after)) == after
    for node, found, lane in loaded_matrices(before, after):
        load, element = (node.arg, node.axis) if isinstance(node, Pack) else (node, Var("whole", 1))
        assert isinstance(load, Load)
        row = MATRIX_LOADS[found.instruction]
        others = {v: data.draw(st.integers(0, v.extent - 1)) for v in variables(load.address) | variables(found.row)}
        places = enumerate(product(*(range(v.extent) for v in found.axes)))
        for (matrix, place), t, e in product(places, range(32), range(element.extent)):
            line, column = t // MATRIX_WORDS, t % MATRIX_WORDS * element.extent + e
            if row.transposed:
                line, column = column, line
            namer = evaluate(found.row, others | {lane: matrix * MATRIX_ROWS + line})
            at = others | dict(zip(found.axes, place, strict=True)) | {lane: t, element: e}
            assert evaluate(load.address, at) == namer + column
            assert namer * load.dtype.size % ROW_BYTES == 0


def loaded_matrices(before: Kernel, after: Kernel) -> Iterator[tuple[DfgNode, LdMatrix, Var]]:
    """Yield nodes, their loads of matrices, and the variable of lanes."""
    for old, new in zip(phases(before.items), phases(after.items), strict=True):
        for root, found in zip(old.roots, new.roots, strict=True):
            if isinstance(root, (MmaAccumulate, RegisterWrite)) and root.lane:
                yield from ((node, matrix, root.lane) for node, matrix in _pairs(root, found))


def _pairs(before: DfgNode, after: DfgNode) -> Iterator[tuple[DfgNode, LdMatrix]]:
    if isinstance(after, LdMatrix):
        yield before, after
    else:
        for pair in zip(operand_nodes(before), operand_nodes(after), strict=False):
            yield from _pairs(*pair)


PRODUCT = """
var tid < 32, k < {steps}, ra < 4, rb < 2, ea < 1, eb < 1

kernel blocks 1 threads 32 {{
  reads x
  writes y
  dtype x: f32
  dtype y: f32
  buffer s: f32[64]
  phase compute p {{
    initialise t[2, 4]: f32 for sum
  }}
  loop k {{
    phase fetch f async {{
      %0: f32 = load global x[{place}]
      store shared s[tid]: f32 = %0
    }}
    phase compute q unroll ra, rb {{
      %0: f32 = load shared s[2*ra]
      %1: u32 = pack %0 over ea
      %2: f32 = load shared s[2*rb]
      %3: u32 = pack %2 over eb
      multiply t[0, 2]: f32 by m16n8k8_tf32 columns 1 of %1 and %3 registers (ra, rb) lane tid
    }}
  }}
}}
"""


def select_product(steps: int, place: str) -> str:
    """Return the text of a product of some K blocks after selection."""
    return print_ir(select_instructions(parse_ir(PRODUCT.format(steps=steps, place=place)), "opencl"))


def test_matrix_instructions_name_their_registers() -> None:
    found = select_product(8, "tid")
    assert "mma m16n8k8_tf32 t[2, 3, 6, 7]: f32 = %1 * %3 registers (ra, rb)" in found


def test_long_loops_of_products_are_unrolled_by_two() -> None:
    assert "loop k unroll 2 {" in select_product(96, "32*k + tid")
    assert "loop k {" in select_product(94, "32*k + tid")
    assert "loop k {" in select_product(96, "(k // 3) + tid")


def test_constants_are_copied_by_threads() -> None:
    """Hardware copies read global memory, where a kernel's constants do not lie."""
    constant = KERNEL.replace("  aligned x", "  dtype c: f32\n  aligned x")
    constant = constant.replace("  buffer", "  constant c = [1, 2, 3, 4]\n  buffer")
    lines = "%0: f32 = load constant c[u]\nstore shared s[u]: f32 = %0"
    found = select_instructions(parse_ir(constant % ("phase fetch p async unroll u", lines)), "cuda")
    assert kernel_violations(found, threads=True) == [] and "async_copy" not in print_ir(found)


def test_broken_instructions_are_reported() -> None:
    kernel = select_instructions(parse_ir(KERNEL % ("phase fetch p async unroll u", COPY)), "cuda")
    ((copy,),) = (phase.roots for phase in phases(kernel.items))
    assert isinstance(copy, AsyncCopy) and COPIES[copy.instruction].nbytes == 16
    assert list(check_instructions_known([evolve(copy, width=2)])) == ["'cp_async_16' copies no 2 elements of f32"]
    moved = "4 elements from 0 of u are no vector at 4*tid + u + 1"
    assert list(check_vectors_whole([evolve(copy, start=copy.start + 1)])) == [moved]
    matrix = LdMatrix("ldmatrix_x2", "s", Index(0), (Var("u", 4),), copy.dtype)
    assert copy.axis is not None
    store = VectorStore("shared", "s", Index(0) + copy.axis, matrix, copy.dtype, copy.axis, 3)
    assert list(check_instructions_known([store])) == ["'ldmatrix_x2' loads no 4 matrices into f32"]
    assert list(check_vectors_whole([store])) == [
        "vectors of 3 elements cover u of 4",
        "3 elements from 0 of u are no vector at u",
    ]
