"""Products beside a box in shared memory.

Matrix instructions fill it, or read it, in all types that they multiply; windows of a few channels are boxes, too.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import FusedGroup, Schedule, parse_ir
from cuts.passes.lowering import check_barriers, extract, lower
from cuts.passes.schedule import check_schedule, choose, make_space, to_schedule
from cuts.tests.emission import emit

from ..needs import needs_cuda, needs_opencl
from .test_points import _device, check

H200 = find_target("cuda:h200")
#: A warp or two: PoCL takes seconds for more.
SMALL_TARGET = evolve(H200, MAX_thread=64, MAX_shared=16384)
TYPES = {"f16": ("f32", "0.0", "6.0"), "bf16": ("f32", "0.0", "6.0"), "i8": ("i32", "0", "6"), "u8": ("i32", "0", "6")}
DEPTHWISE_SEGMENT = """  segment (m, p, q, d) {
    reduce z = sum over (r, s) of SUMS("v"[r, s, d]) * SUMS("u"[m, STEP*p + r - 1, STEP*q + s - 1, d if 0 <= STEP*p +
    r - 1 < 5, 0 <= STEP*q + s - 1 < 5 else 0])
    output "y"[m, p, q, d] = min(max(KIND(z[m, p, q, d]), ZERO:KIND), SIX:KIND)
  }
"""
EXPANDING_SEGMENT = """  segment (n, h, w, e) {
    reduce t = sum over (c) of SUMS("f"[e, c]) * SUMS("x"[n, h, w, c])
    output "u"[n, h, w, e] = min(max(KIND(t[n, h, w, e]), ZERO:KIND), SIX:KIND)
  }
"""
WINDOW_SEGMENT = """  segment (n, h, w, e) {
    reduce t = sum over (i, j, k) of SUMS("g"[i, j, k, e]) * SUMS("a"[n, i, 2*h + j - 1, 2*w + k - 1 if 0 <= 2*h + j - 1
    < 10, 0 <= 2*w + k - 1 < 10 else 0])
    output "u"[n, h, w, e] = min(max(KIND(t[n, h, w, e]), ZERO:KIND), SIX:KIND)
  }
"""
PROJECTING_SEGMENT = """  segment (l, y, x, o) {
    reduce b = sum over (c) of SUMS("k"[o, c]) * SUMS("y"[l, y, x, c])
    output "w"[l, y, x, o] = KIND(b[l, y, x, o])
  }
"""
GROUP = """var n < 1, h < 5, w < 5, e < 24, c < 24, m < 1, p < OUT, q < OUT, d < 24, r < 3, s < 3, i < 3, j < 3, k < 3
var l < 1, y < OUT, x < OUT, o < 8

group {
  tensor "v": KIND[3, 3, 24]
  tensor "u": KIND[1, 5, 5, 24]
  tensor z: SUMS[1, OUT, OUT, 24]
  tensor "y": KIND[1, OUT, OUT, 24]
"""
#: Further tensors and segments of a group: a product or windows before a depthwise contraction, or a product after it.
PARTS = {
    "expanded": (
        """  tensor t: SUMS[1, 5, 5, 24]
  tensor "f": KIND[24, 24]
  tensor "x": KIND[1, 5, 5, 24]
  inputs "f", "x", "v"
  outputs "y"
  shared "u"
""",
        EXPANDING_SEGMENT + DEPTHWISE_SEGMENT,
    ),
    "windows": (
        """  tensor t: SUMS[1, 5, 5, 24]
  tensor "g": KIND[3, 3, 3, 24]
  tensor "a": KIND[1, 3, 10, 10]
  inputs "g", "a", "v"
  outputs "y"
  shared "u"
""",
        WINDOW_SEGMENT + DEPTHWISE_SEGMENT,
    ),
    "projected": (
        """  tensor b: SUMS[1, OUT, OUT, 8]
  tensor "k": KIND[8, 24]
  tensor "w": KIND[1, OUT, OUT, 8]
  inputs "u", "v", "k"
  outputs "w"
  shared "y"
""",
        DEPTHWISE_SEGMENT + PROJECTING_SEGMENT,
    ),
}


def group(kind: str, form: str, step: int = 1) -> FusedGroup:
    """Return a group whose depthwise contraction moves by `step` pixels."""
    (tensors, segments), (sums, zero, six) = PARTS[form], TYPES[kind]
    text = GROUP + tensors + (segments if sums == "i32" else re.sub(r"SUMS\(([^)]*)\)", r"\1", segments)) + "}\n"
    words = {"KIND": kind, "SUMS": sums, "ZERO": zero, "SIX": six, "STEP": str(step), "OUT": str((4 + step) // step)}
    for word, value in words.items():
        text = text.replace(word, value)
    made = parse_ir(text)
    assert isinstance(made, FusedGroup)
    return made


def points(made: FusedGroup, count: int) -> list[Schedule]:
    """Return random legal points with matrix instructions."""
    space, random, found = make_space(made, SMALL_TARGET), np.random.default_rng(1), list[Schedule]()
    starts = np.cumsum([0, *(t.size for t in space.templates)])
    boxed = [n for n, t in enumerate(space.templates) if any(s.boxed for s in t.segments)]
    assert boxed
    for _ in range(3000):
        number = int(random.choice(boxed))
        schedule = to_schedule(space, int(starts[number] + random.integers(space.templates[number].size)))
        if not check_schedule(made, schedule, SMALL_TARGET):
            found.append(schedule)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} legal points")


@needs_opencl
@pytest.mark.parametrize("kind", [*TYPES])
@pytest.mark.parametrize(("form", "step"), [("expanded", 1), ("expanded", 2), ("windows", 1), ("projected", 2)])
def test_products_beside_boxes_are_right(kind: str, form: str, step: int) -> None:
    made = group(kind, form, step)
    for schedule in points(made, 1):
        assert check_barriers(lower(made, schedule, {}, SMALL_TARGET)) == ()
        check(_device("opencl"), SMALL_TARGET, made, schedule)


@needs_cuda
@pytest.mark.parametrize("kind", [*TYPES])
@pytest.mark.parametrize(("form", "step"), [("expanded", 1), ("expanded", 2), ("windows", 1), ("projected", 2)])
def test_chosen_products_are_right_on_cuda(kind: str, form: str, step: int) -> None:
    made = group(kind, form, step)
    check(_device("cuda"), H200, made, choose(made, H200)[0].schedule)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_halves_begin_at_zero(kind: str) -> None:
    """Conversions of two halves set negative ones to 0."""
    made = group(kind, "expanded")
    source = emit(extract(lower(made, choose(made, H200)[0].schedule, {}, H200)), "cuda").source
    body = source[source.index("__global__") :]
    assert f"cuts_{kind}_from_zero_x2(" in body and "cuts_min_f32(" in body and "cuts_max_f32(" not in body
