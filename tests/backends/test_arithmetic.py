"""Kernel helpers for behaviour that C leaves undefined.

Each compiles, and the maximum of two is one instruction where the machine has one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuts.backends.compilers.cubins import find_toolchain
from cuts.backends.devices import find_target
from cuts.backends.source.dialect.arithmetic import arithmetic_helpers
from cuts.backends.source.dialect.dialects import CUDA, DIALECTS, OPENCL
from cuts.ir.functions import FUNCTIONS
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose
from cuts.tests.emission import emit
from cuts.tests.fusion.build import fuse_units, graph, op
from cuts.tests.needs import disassemble, needs_disassembler, needs_toolchain

HELPER = re.compile(r"cuts_\w+?_\{t\}")
INTS = [d for d in DType if d.is_int]
FLOATS = [d for d in DType if d.is_float]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_called_helper_exists_for_every_type(dialect: str) -> None:
    for function in FUNCTIONS.values():
        wanted = [
            (name, [d for d in types if function.takes(d)])
            for text, types in ((function.c_int or function.c, INTS), (function.c, FLOATS))
            for name in HELPER.findall(text)
        ]
        for name, types in wanted:
            assert {name.format(t=d.arithmetic) for d in types} <= DIALECTS[dialect].helpers.keys()


def test_opencl_reads_no_variable_as_another_type() -> None:
    """To a compiler pointers of different types, but bytes and vectors, differ."""
    texts = (*OPENCL.helpers.values(), OPENCL.register_load, OPENCL.exchange, *OPENCL.instructions.values())
    casts = {cast for text in texts for cast in re.findall(r"\((?:const |__local |\{space\})*(\w+)\*\) ?[&(]", text)}
    assert casts <= {"void", "char", "uchar", "uchar2", "uchar4"}


def uses() -> Iterator[str]:
    """Yield C that calls every helper of CUDA on elements of memory."""
    for name, text in arithmetic_helpers("", CUDA.types).items():
        dtype = DType(name.rsplit("_", 1)[1])
        arguments = [f"(({CUDA.type(dtype)}*)p)[{n}]" for n in range(1, 1 + text.partition(")")[0].count(",") + 1)]
        yield f"(({CUDA.type(dtype)}*)p)[0] = {name}({', '.join(arguments)});"
    for dtype in (DType.I64, DType.U64, DType.U32):
        place = f"(({CUDA.type(dtype)}*)p)"
        yield f"((int*)p)[0] = cuts_index_{dtype}({place}[1], 5) + cuts_wrap_{dtype}({place}[2], 5);"


@needs_toolchain
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_every_helper_compiles_for_cuda(arch: str) -> None:
    body = "\n  ".join(uses())
    source = f'{CUDA.helpers_of(body)}extern "C" __global__ void every(void* p) {{\n  {body}\n}}\n'
    code, _ = find_toolchain().compile(source, arch, 120.0)
    assert code


def machine_code(source: str, folder: Path) -> str:
    """Return the instructions that a source becomes for sm_90a."""
    return disassemble(find_toolchain().compile(source, "sm_90a", 120.0)[0], folder)


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize("operand", ["0.0f", "p[t + 256]"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_an_extreme_is_one_instruction_of_the_machine(name: str, operand: str, tmp_path: Path) -> None:
    line = f"int t = (int)threadIdx.x; p[t] = cuts_{name}_f32(p[t], {operand});"
    source = f'{CUDA.helpers_of(line)}extern "C" __global__ void one(float* p) {{ {line} }}\n'
    text = machine_code(source, tmp_path)
    assert len(re.findall(r"\bFMNMX\.NAN\b", text)) == 1
    assert not re.search(r"\b(FSETP|FSEL|FMNMX (?!\.NAN))\b", text)


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16], ids=str)
def test_chain_of_halves_moves_16_bytes_in_pairs(dtype: DType, tmp_path: Path) -> None:
    target, kind = find_target("cuda:sm_90"), TensorType(dtype, (4096, 4096))
    made = graph(
        {"x": kind, "y": kind}, op("a", "add", "x", "y"), op("r", "relu", "a"), op("z", "mul", "r", "y"), out="z"
    )
    group = fuse_units(made, "n0 n1 n2")
    assert isinstance(group, Group)
    kernel = extract(lower(group.form, choose(group.form, target)[0].schedule, {}, target))
    text = machine_code(emit(kernel, "cuda").source, tmp_path)
    found = Counter(re.findall(r"\b(?:LDG|STG|F2FP|F2F|PRMT)\.?[A-Z0-9_.]*", text))
    loads, stores = found["LDG.E.128.CONSTANT"], found["STG.E.128"]
    assert loads == 2 * stores > 0
    assert found[f"F2FP.{dtype.value.upper()}.F32.PACK_AB"] == 4 * stores
    assert sum(found.values()) == loads + stores + 4 * stores, found
