"""Code of a plan's kernels: merged OpenCL programs, or cubins."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from ...backends.compilers import complete_binaries
from ...backends.opencl import build_options, programs_of
from ...ir import KernelFunction
from ..plan import Plan


@frozen
class KernelCode:
    """Programs, each kernel's program by number, and build options."""

    programs: tuple[bytes, ...]
    owners: tuple[int, ...]
    options: str = ""


def kernel_code(plan: Plan) -> KernelCode:
    """Return the code of all kernels of a plan.

    Raises `BackendError` where a cubin is missing and no compiler is here.
    """
    return _cubins(plan) if plan.target.dialect == "cuda" else _opencl_programs(plan.kernels)


def _opencl_programs(kernels: Sequence[KernelFunction]) -> KernelCode:
    """Return as few programs as possible: starting an OpenCL compiler takes longer than compiling a kernel."""
    unique = list({kernel.source: kernel for kernel in kernels}.values())
    programs = programs_of(unique)
    owners = {each.source: number for number, p in enumerate(programs) for each in p.kernels.values()}
    texts = tuple(program.source.encode() for program in programs)
    return KernelCode(texts, tuple(owners[kernel.source] for kernel in kernels), build_options())


def _cubins(plan: Plan) -> KernelCode:
    codes = complete_binaries(plan.kernels, plan.binaries, plan.target.arch)
    unique = list(dict.fromkeys(codes))
    return KernelCode(tuple(unique), tuple(unique.index(code) for code in codes))
