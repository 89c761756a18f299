"""Pointwise segments exchange values through shared memory, in one kernel.

Blocks divide the axes that all segments have in common, tails included; each element is written once, ahead of a
barrier, and the threads that write and read it hit different banks.
"""

from __future__ import annotations

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir import Barrier, FusedGroup, has_dependent_sizes, owned_axes, parse_ir
from cuts.passes.fusion.grouping.exchange import exchange_level
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.normalise import Illegal
from cuts.passes.geometry import schedule_of, shared_pitches
from cuts.passes.lowering import check_barriers, extract, lower
from cuts.passes.schedule import check_schedule
from cuts.passes.schedule.selection.enumerate import columns_at
from cuts.passes.schedule.space import make_space
from cuts.tests.emission import emit

from ..needs import needs_opencl
from .test_points import SMALL_GPU, _device, check

H200 = find_target("cuda:h200")
#: Rows of 4 x 6 pairs are turned, folded and turned again; the last row of a block may be missing.
TRANSPOSED_ROWS = """var b < 5, k < 4, j < 6, p < 24

group {
  tensor x: f32[5, 24, 2]
  tensor w: f32[24]
  tensor h: f32[5, 4, 6, 2]
  tensor g: f32[5, 6, 4]
  tensor y: f32[5, 25]
  inputs x, w
  outputs y
  shared h, g
  segment (b, p) {
    output h[b, (p % 4), (p // 4), 0] = x[b, p, 0] + x[b, p, 1]
    output h[b, (p % 4), (p // 4), 1] = x[b, p, 0] - x[b, p, 1]
  }
  segment (b, k, j) {
    output g[b, j, k] = h[b, k, j, 0] * h[b, 3 - k, 5 - j, 1] + w[k]
  }
  segment (b, k, j) {
    output y[b, k + 4*j] = g[b, j, k] - g[b, 5 - j, k]
    output y[b, k + 4*j + 24] if 0 <= k + 4*j < 1 = g[b, j, k]
  }
}
"""
#: Lanes lie along an axis inside of the rows.
INNER_LANES = """var b < 2, k < 8, i < 5, j < 8

group {
  tensor x: f32[2, 8, 5, 2]
  tensor h: f32[2, 8, 5, 2]
  tensor y: f32[2, 8, 5]
  inputs x
  outputs y
  shared h
  segment (b, k, i) {
    output h[b, 7 - k, i, 0] = max(x[b, k, i, 0], x[b, k, i, 1])
    output h[b, 7 - k, i, 1] = x[b, k, i, 0] * 0.5
  }
  segment (b, j, i) {
    output y[b, j, i] = h[b, j, i, 0] + h[b, (j // 2), i, 1]
  }
}
"""


def parse_group(text: str, kind: str = "f32") -> FusedGroup:
    found = parse_ir(text.replace("f32", kind))
    assert isinstance(found, FusedGroup)
    return found


def parts(group: FusedGroup) -> list[FusedGroup]:
    """Return the segments of a group as groups."""
    found = []
    for segment in group.segments:
        written = tuple(dict.fromkeys(o.tensor for o in segment.outputs))
        types = {t: group.tensors[t] for t in (*segment.tensors_read, *written)}
        found.append(FusedGroup((segment,), types, segment.tensors_read, written))
    return found


def test_blocks_own_the_common_axes() -> None:
    for text, owned in ((TRANSPOSED_ROWS, ((0,), (0,), (0,))), (INNER_LANES, ((0, 2), (0, 2)))):
        group = parse_group(text)
        assert owned_axes(group.segments, group.shared) == owned
        assert not has_dependent_sizes(group)


def test_equal_segments_are_one_object() -> None:
    """Comparisons of expressions that share parts are as slow as of trees."""
    group, other = parse_group(TRANSPOSED_ROWS), parse_group(TRANSPOSED_ROWS)
    assert all(a is b for a, b in zip(group.segments, other.segments, strict=True))


def test_groups_of_one_segment_become_an_exchange() -> None:
    for text in (TRANSPOSED_ROWS, INNER_LANES):
        assert exchange_level(parts(parse_group(text)), Policy()) == parse_group(text)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("g[b, j, k] - g[b, 5 - j, k]", "g[b, j, k] - h[b, k, j, 0]", "h is read by a later segment than the next"),
        ("output g[b, j, k] = h[b, k, j, 0] * h[b, 3 - k, 5 - j, 1]", "output g[b, j, k] = x[b, k, 0]",
         "a segment reads nothing of the one before"),
    ],
)  # fmt: skip
def test_other_groups_are_no_exchange(old: str, new: str, reason: str) -> None:
    assert exchange_level(parts(parse_group(TRANSPOSED_ROWS.replace(old, new))), Policy()) == Illegal(reason)


def test_data_determines_no_place_of_an_exchange() -> None:
    text = TRANSPOSED_ROWS.replace("h[b, 3 - k, 5 - j, 1]", "h[b, t[k]{4}, 5 - j, 1]")
    text = text.replace("tensor w: f32[24]", "tensor w: f32[24]\n  tensor t: i64[4]").replace(
        "inputs x, w", "inputs x, w, t"
    )
    assert exchange_level(parts(parse_group(text)), Policy()) == Illegal(
        "data determines the places of exchanged values"
    )


def test_tensors_that_no_segment_reads_are_not_passed() -> None:
    unread = "    output z[b, p] = v[p] * x[b, p, 0]\n"
    text = TRANSPOSED_ROWS.replace("    output h[b, (p % 4)", unread + "    output h[b, (p % 4)", 1)
    text = text.replace("  tensor h", "  tensor v: f32[24]\n  tensor z: f32[5, 24]\n  tensor h", 1)
    text = text.replace("inputs x, w", "inputs x, v, w").replace("shared h", "shared z, h")
    whole, found = parse_group(TRANSPOSED_ROWS), exchange_level(parts(parse_group(text)), Policy())
    assert found == whole


def test_rows_fit_shared_memory() -> None:
    found = exchange_level(parts(parse_group(TRANSPOSED_ROWS)), Policy(shared_bytes=4 * (48 + 24) - 1))
    assert found == Illegal("one row needs 288 bytes, shared memory has 287")


@needs_opencl
@pytest.mark.parametrize("kind", ["f32", "f64", "f16"])
@pytest.mark.parametrize("text", [TRANSPOSED_ROWS, INNER_LANES])
def test_points_compute_their_group(text: str, kind: str) -> None:
    group = parse_group(text, kind)
    (template,) = make_space(group, SMALL_GPU).templates
    points = np.random.default_rng(0).permutation(template.size)
    columns, checked = columns_at(template, points), 0
    for n in range(len(points)):
        schedule = schedule_of(group, template, {k: int(v[n]) for k, v in columns.items()}, SMALL_GPU.warp_size)
        if check_schedule(group, schedule, SMALL_GPU):
            continue
        assert check_barriers(lower(group, schedule, {}, SMALL_GPU)) == ()
        if checked < 4:
            check(_device("opencl"), SMALL_GPU, group, schedule)
        checked += 1
    assert checked >= 4


def test_a_missing_barrier_is_a_race() -> None:
    group = parse_group(TRANSPOSED_ROWS)
    (template,) = make_space(group, H200).templates
    values = {name: knob.values[0][n] for knob in template.parameters for n, name in enumerate(knob.names)}
    kernel = lower(group, schedule_of(group, template, values, H200.warp_size), {}, H200)
    assert check_barriers(kernel) == ()
    items = tuple(item for item in kernel.items if not isinstance(item, Barrier))
    assert any("since the last barrier" in fault for fault in check_barriers(evolve(kernel, items=items)))
    assert emit(extract(kernel), "cuda").source.count("__syncthreads") == 2


def test_two_writes_of_an_element_are_a_race() -> None:
    group = parse_group(TRANSPOSED_ROWS.replace("h[b, (p % 4), (p // 4), 1] = ", "h[b, (p % 4), 5 - (p // 4), 0] = "))
    (template,) = make_space(group, H200).templates
    values = {name: knob.values[0][n] for knob in template.parameters for n, name in enumerate(knob.names)}
    faults = check_barriers(lower(group, schedule_of(group, template, values, H200.warp_size), {}, H200))
    assert any("more than once" in fault for fault in faults)


def test_lanes_hit_different_banks() -> None:
    """A warp writes 32 pairs side by side, and reads a column."""
    text = """var b < 64, k < 32, j < 32

group {
  tensor x: f32[64, 32, 32, 2]
  tensor h: f32[64, 32, 32, 2]
  tensor y: f32[64, 32, 32]
  inputs x
  outputs y
  shared h
  segment (b, k, j) {
    output h[b, k, j, 0] = x[b, k, j, 0]
    output h[b, k, j, 1] = x[b, k, j, 1]
  }
  segment (b, j, k) {
    output y[b, j, k] = h[b, 31 - k, 31 - j, 0] + h[b, 31 - k, 31 - j, 1]
  }
}
"""
    pitches, elements = shared_pitches(parse_group(text), "h", [1, 32, 32, 2])
    assert pitches == (32 * 66, 66, 2, 1) and elements == 32 * 66


def test_lanes_share_banks_of_bytes() -> None:
    """A warp has fewer bytes than a line of banks."""
    text = """var b < 64, k < 32, j < 32

group {
  tensor x: f32[64, 32, 32]
  tensor h: f32[64, 32, 32]
  tensor y: f32[64, 32, 32]
  inputs x
  outputs y
  shared h
  segment (b, k, j) {
    output h[b, k, j] = x[b, k, j]
  }
  segment (b, j, k) {
    output y[b, j, k] = h[b, 31 - k, j]
  }
}
"""
    assert shared_pitches(parse_group(text, "i8"), "h", [1, 32, 32]) == ((32 * 32, 32, 1), 32 * 32)
