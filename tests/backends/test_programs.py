"""Kernels that share a program: each definition once, none of them changed."""

from __future__ import annotations

from attrs import evolve
from cuts.backends.opencl.programs import programs_of
from cuts.backends.source.dialect.dialects import DIALECTS
from cuts.ir.compiled import KernelFunction

PRAGMA = "#ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n"
ONE = "static inline int cuts_one(int i) { return i; }\n"
TWO = "__attribute__((always_inline)) inline void cuts_two(int i) {\n  if (i) { cuts_one(i); }\n}\n"
MACRO = "#define CUTS_THREE(a) \\\n  (a)\n"


def kernel(name: str, prologue: str) -> KernelFunction:
    source = f"{prologue}__kernel void {name}(__global float* p0) {{\n  p0[0] = 1;\n}}\n"
    return KernelFunction(name, "opencl", source, (1, 1, 1), (1, 1, 1), ())


def test_helpers_of_all_kernels_stand_once_before_them() -> None:
    kernels = [kernel("a", PRAGMA + ONE), kernel("b", PRAGMA), kernel("c", PRAGMA + MACRO + ONE + TWO)]
    (program,) = programs_of(kernels)
    assert list(program.kernels) == ["a", "b", "c"]
    for text in (PRAGMA, ONE, TWO, MACRO, *(k.source[k.source.index("__kernel") :] for k in kernels)):
        assert program.source.count(text.rstrip()) == 1
    assert (
        program.source.index("cuts_one(int") < program.source.index("cuts_two(int") < program.source.index("__kernel")
    )


def test_a_program_of_one_kernel_is_its_source() -> None:
    (program,) = programs_of([kernel("a", PRAGMA + ONE + TWO)])
    assert program.source.split() == kernel("a", PRAGMA + ONE + TWO).source.split()


def test_kernels_of_one_name_have_their_own_programs() -> None:
    other = kernel("b", ONE.replace("return i", "return -i"))
    same = evolve(kernel("a", ONE), source=kernel("a", ONE).source.replace("= 1", "= 2"))
    assert [list(p.kernels) for p in programs_of([kernel("a", ONE), other, same])] == [["a"], ["b"], ["a"]]


def test_every_helper_of_the_language_is_one_definition() -> None:
    for name, text in DIALECTS["opencl"].helpers.items():
        (program,) = programs_of([kernel("a", f"{text}\n")])
        assert list(program.definitions) == [name]
