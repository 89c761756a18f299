"""Kernels for every described GPU compile without one: products, convolutions and rows."""

from __future__ import annotations

import re
from functools import cache

import pytest
from attrs import frozen
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.source import emit
from cuts.backends.targets import Description, descriptions
from cuts.ir import CompileOptions, DType, Graph, Node, PrecisionName, Target, TensorType
from cuts.ir.compiled import KernelFunction
from cuts.ir.errors import BackendError
from cuts.ir.machine import MMA_INSTRUCTIONS
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph
from cuts.tests.needs import needs_toolchain

pytestmark = pytest.mark.long

REGISTRY = Registry.builtin()
MACHINES = [item for item in descriptions() if item.target.dialect == "cuda"]


@frozen
class Case:
    """Operation on typed tensors under a policy.

    It names the matrix format that it should use.
    """

    op: str
    dtype: DType
    shapes: tuple[tuple[int, ...], ...]
    format: str = ""
    precision: PrecisionName = "fp32"

    @property
    def graph(self) -> Graph:
        """The operation as a graph."""
        types = {f"x{n}": TensorType(self.dtype, shape) for n, shape in enumerate(self.shapes)}
        names = tuple(types)
        (types["y"],) = REGISTRY[self.op].instantiate([*types.values()], {}).output_types
        return Graph("case", names, ("y",), types, (Node("n", self.op, names, ("y",), {}),))


#: Products by atoms are staged, with asynchronous copies where the machine has them.
CASES = {
    "product bf16": Case("matmul", DType.BF16, ((4096, 1024), (1024, 1024)), "bf16"),
    "product f16": Case("matmul", DType.F16, ((4096, 1024), (1024, 1024)), "f16"),
    "product tf32": Case("matmul", DType.F32, ((4096, 1024), (1024, 1024)), "tf32", "tf32"),
    "product f32": Case("matmul", DType.F32, ((512, 768), (768, 512))),
    "convolution f16": Case("conv", DType.F16, ((8, 64, 28, 28), (64, 64, 3, 3)), "f16"),
    "softmax": Case("softmax", DType.F16, ((512, 1000),)),
}


@cache
def compiles(arch: str) -> str:
    """Return the reason for missing code of an architecture, else nothing."""
    source = 'extern "C" __global__ void nothing() {}\n'
    try:
        compile_kernels([KernelFunction("nothing", "cuda", source, (1, 1, 1), (1, 1, 1), ())], arch)
    except BackendError as error:
        return error.message
    return ""


def formats(target: Target) -> set[str]:
    """Return the operand formats of a target's matrix instructions."""
    return {MMA_INSTRUCTIONS[name].format for name, _ in target.atoms}


def cases(machine: Description) -> dict[str, Case]:
    """Return the cases that are compiled for a machine.

    A machine that stands for its architecture has every case that the target can follow; one that differs from it only
    in its numbers has one product.
    """
    if not machine.represents:
        return {"product f16": CASES["product f16"]}
    able = formats(machine.target)
    return {name: case for name, case in CASES.items() if case.precision == "fp32" or case.format in able}


@needs_toolchain
@pytest.mark.parametrize("machine", MACHINES, ids=lambda item: item.aliases[-1])
def test_kernels_of_every_machine_compile(machine: Description) -> None:
    target = machine.target
    if why := compiles(target.arch):
        assert re.search("gpu.architecture", why, re.IGNORECASE), (
            why
        )  # anything else is wrong here, not with the machine
        pytest.skip(why)
    made: list[KernelFunction] = []
    asynchronous = False
    for name, case in cases(machine).items():
        options = CompileOptions(verify=False, precision=case.precision)
        # One of few results, for a machine of many SMs, is split in two.
        kernel, *others = compile_graph(case.graph, REGISTRY, target, options, emit).kernels
        made += [kernel, *others]
        multiplies = "mma.sync" in kernel.source or "wgmma" in kernel.source
        assert multiplies == (case.format in formats(target)), name
        if multiplies:
            assert kernel.dynamic_shared + kernel.shared_bytes > 1024, f"{name} is not staged"
            asynchronous |= "cp.async" in kernel.source
    assert asynchronous == target.async_copy
    cubins = compile_kernels(made, target.arch)
    # Nothing was measured: how many registers ptxas takes is an estimate here, which a few words may exceed.
    assert all(cubin.spill_bytes <= 64 for cubin in cubins)
