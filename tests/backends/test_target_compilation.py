"""Kernels and matrix instructions of every CUDA target compile for its architecture."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernel
from cuts.backends.targets import descriptions
from cuts.ir.machine import MMA_INSTRUCTIONS
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import choose
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit
from cuts.tests.kernels.cases import legal_point
from cuts.tests.kernels.test_matrix_instructions import product
from cuts.tests.kernels.test_warpgroup_products import product_of_two
from cuts.tests.needs import require_architecture
from cuts.tests.search_space.groups import conv, matmul, softmax

TARGETS = [each.target for each in descriptions() if each.target.dialect == "cuda"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_kernels_of_every_target_compile(target):
    require_architecture(target.arch)
    for group in (matmul(96, 96, 64), conv(1, 16, 32, 14), softmax(64, 256)):
        kernel = extract(lower(group, choose(group, target)[0].schedule, {}, target))
        assert compile_kernel(emit(kernel, "cuda"), target.arch).code.startswith(b"\x7fELF")


#: A target of each architecture, and the instructions that it lists.
INSTRUCTIONS = [
    (target, name) for target in {t.arch: t for t in TARGETS}.values() for name, *_ in target.atoms
]  # fmt: skip


@pytest.mark.parametrize(("target", "name"), INSTRUCTIONS, ids=lambda each: getattr(each, "arch", each))
def test_each_matrix_instruction_of_an_architecture_compiles(target, name):
    require_architecture(target.arch)
    instruction = MMA_INSTRUCTIONS[name]
    shape, (first, second) = (1, 128, 128, 128), instruction.operand_dtypes
    mode = "tf32" if instruction.format == "tf32" else ""
    same = first is second
    group = product(first, mode, shape, (False, True)) if same else product_of_two((first, second), shape)
    space = make_space(group, evolve(target, atoms=tuple(a for a in target.atoms if a[0] == name)))
    structure = next(t for t in space.templates if t.segments[0].mma == name)
    schedule = legal_point(space, structure, 1)
    source = emit(extract(lower(group, schedule, {}, target)), "cuda")
    assert compile_kernel(source, target.arch).code.startswith(b"\x7fELF")
