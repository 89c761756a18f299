"""Instructions of the main loop of a product by matrix instructions.

These are products, loads of fragments by matrices, copies, and little else; nothing spills.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from attrs import frozen
from cuts.backends.compilers.cubins import compile_kernels
from cuts.backends.devices import find_target
from cuts.ir.types import DType
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import check_schedule
from cuts.tests.emission import emit
from cuts.tests.hand_points import HandPoint
from cuts.tests.products import FORMATS, product_group

from ..backends.test_arithmetic import machine_code, needs_disassembler
from ..needs import needs_toolchain

H200 = find_target("cuda:h200")


@frozen
class Anatomy:
    """Instructions of a warp in one step.

    Products, loads by matrices, single loads, and at most so many others that are no copy.
    """

    products: int
    matrices: int
    loads: int
    others: int


#: Of 64x64 elements a warp (64x32 where sums are promoted). TF32 rounds 32 numbers a step; `fp32x3` makes two parts of
#: 24 by 2 instructions and adds 64 partial sums every fourth step.
CASES = {
    "bf16": (HandPoint((2, 4), (4, 8), 128, 3, 1), Anatomy(32, 8, 0, 20)),
    "f16": (HandPoint((2, 4), (4, 8), 64, 4, 1), Anatomy(32, 8, 0, 28)),
    "tf32": (HandPoint((2, 4), (4, 8), 128, 3, 1), Anatomy(32, 4, 16, 32 + 20)),
    "fp32x3": (HandPoint((2, 4), (4, 4), 128, 3, 1), Anatomy(48, 4, 8, 24 * 2 + 16 + 20)),
}


@pytest.mark.parametrize(("turns", "together"), [(95, 1), (96, 2), (97, 1)])
def test_long_loops_are_written_out_by_twos(turns: int, together: int) -> None:
    point, group = CASES["tf32"][0], product_group(FORMATS["tf32"], (1, 512, 512, 32 * turns), DType.F32)
    text = emit(extract(lower(group, point.schedule(group, "tf32"), {}, H200)), "cuda").source
    assert re.findall(r"unroll (\d+)\n *for \(int s0r0it\b", text) == [str(together)]


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize("name", CASES)
def test_the_main_loop_multiplies_and_loads_by_matrices(name: str, tmp_path: Path) -> None:
    point, wanted = CASES[name]
    group = product_group(FORMATS[name], (1, 4096, 4096, 1024), DType.F32)
    schedule = point.schedule(group, name)
    assert check_schedule(group, schedule, H200) == []
    function = emit(extract(lower(group, schedule, {}, H200)), "cuda")
    found = Counter(main_loop(machine_code(function.source, tmp_path)))
    steps = point.row_bytes // 32
    products, matrices = (sum(n for op, n in found.items() if op.startswith(p)) for p in ("HMMA", "LDSM"))
    loads = found["LDS"]
    copies = sum(n for op, n in found.items() if op.startswith("LDGSTS"))
    assert (products, matrices) == (wanted.products * steps, wanted.matrices * steps)
    # Three loads of nothing stand before the copies of each step but the last.
    assert 0 <= loads - wanted.loads * steps <= 3 * max(1, steps - 1)
    assert sum(found.values()) - products - matrices - loads - copies <= wanted.others * steps
    (compiled,) = compile_kernels([function], "sm_90")
    assert compiled.spill_bytes == 0


def main_loop(text: str) -> list[str]:
    """Return the instructions of the shortest loop that holds products, without operands."""
    labels: dict[str, int] = {}
    loops: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = number
        jump = re.search(r"\bBRA.*`\((\.L_x_\d+)\)", line)
        if jump and labels.get(jump[1], number) < number:
            body = lines[labels[jump[1]] : number + 1]
            found = [re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", each) for each in body]
            loops.append([each[1] for each in found if each])
    return min((loop for loop in loops if any(op.startswith("HMMA") for op in loop)), key=len)
