"""Threads meet wherever they must: no lowered kernel has a race,
and each has one as soon as anything that orders its threads is gone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.dialect.dialects import DIALECTS
from cuts.ir.dfg import Load, post_order
from cuts.ir.kernel import Barrier, Commit, Item, Kernel, Loop, Phase, Wait, phases
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.types import DType
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.races import MAX_WALKED_STEPS, check_barriers
from cuts.passes.schedule.space import make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from ..fuzz.planted_bugs import BUGS
from ..fuzz.planting import Bug, mutate_function
from .cases import builder, chains, halves, legal_points, pairs
from .test_matrix_instructions import ahead_schedule, product

GPU = find_target("cuda:sm_90")
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]

#: Where the thread's element of slot 0, of slot 1, and of a ring's slots at this step and at the next one lies in
#: buffer a.
SLOTS = {"0": "tid", "1": "64 + tid", "now": "64*(step % 2) + tid", "next": "64*((step + 1) % 2) + tid"}
#: Meaning of the words of a short kernel; {} is a place in a.
PHASES = {
    "fill": "phase fetch fill {{\n%0: f32 = load global x[tid]\nstore shared a[{}]: f32 = %0\n}}",
    "copy": "phase fetch copy async {{\n%0: f32 = load global x[tid]\nstore shared a[{}]: f32 = %0\n}}",
    "ahead": "phase fetch copy async when 0 <= step + 1 < {turns} {{\n%0: f32 = load global x[tid]\nstore shared "
    "a[{}]: f32 = %0\n}}",
    "both": "phase compute both {{\n%0: f32 = load shared a[{0}]\nstore shared a[{0}]: f32 = %0\n}}",
    "use": "phase compute use {{\n%0: f32 = load shared a[{}]\nstore global y[tid]: f32 = %0\n}}",
}


def short(text: str, threads: int = 64, turns: int = 4) -> tuple[str, ...]:
    """Return the defects of a kernel that is written in one line.

    Phases are written with their slots, `[` and `]` around a loop.
    """
    lines: list[str] = []
    for word in text.split(", "):
        name, _, slot = word.partition(" ")
        if name in PHASES:
            lines.append(PHASES[name].format(SLOTS[slot], turns=turns))
        else:
            lines.append({"[": "loop step {", "]": "}"}.get(word, word))
    head = [f"var tid < {threads}, step < {turns}", f"kernel blocks 1 threads {threads} {{"]
    head += ["reads x", "writes y", "dtype x: f32", "dtype y: f32"]
    return check_barriers(parse_ir("\n".join([*head, "buffer a: f32[128]", *lines, "}"])))


@pytest.mark.parametrize(
    "text",
    [
        "fill 0, barrier, use 0",
        "fill 0, barrier, fill 1, use 0, barrier, use 1",
        "[, fill 0, barrier, use 0, barrier, ]",
        "copy 0, commit, wait 0, barrier, use 0",
        "copy 0, commit, copy 1, commit, wait 1, barrier, use 0, wait 0, barrier, use 1",
        "copy 0, commit, [, wait 0, barrier, ahead next, commit, use now, ]",
        "copy 0, commit, [, commit, ], wait {turns}, barrier, use 0",
    ],
)
@pytest.mark.parametrize("turns", [4, 7 * MAX_WALKED_STEPS + 1])
def test_threads_that_meet_have_no_race(text: str, turns: int) -> None:
    assert short(text.format(turns=turns), turns=turns) == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("fill 0, use 0", "phase use reads a[0..63] that phase fill wrote since the last barrier"),
        ("fill 0, barrier, use 0, fill 0", "phase fill overwrites a[0..63] that phase use read since the last barrier"),
        (
            "fill 0, fill 0, barrier, use 0",
            "phase fill overwrites a[0..63] that phase fill wrote since the last barrier",
        ),
        ("[, fill 0, barrier, use 0, ]", "phase fill overwrites a[0..63] that phase use read since the last barrier"),
        ("both 0", "phase both overwrites a[0..63] that phase both read since the last barrier"),
        ("fill 0, barrier, use 1", "phase use reads a[64..127] before all of it was written"),
        ("copy 0, barrier, use 0, commit, wait 0", "phase use reads a[0..63] that phase copy may still be copying"),
        (
            "copy 0, wait 0, barrier, use 0, commit, wait 0",
            "phase use reads a[0..63] that phase copy may still be copying",
        ),
        ("copy 0, commit, barrier, use 0, wait 0", "phase use reads a[0..63] that phase copy may still be copying"),
        (
            "copy 0, commit, commit, wait 2, barrier, use 0, wait 0",
            "phase use reads a[0..63] that phase copy may still be copying",
        ),
        (
            "copy 0, commit, [, commit, ], wait 5, barrier, use 0, wait 0",
            "phase use reads a[0..63] that phase copy may still be copying",
        ),
        (
            "copy 0, commit, barrier, wait 0, use 0",
            "phase use reads a[0..63] that phase copy wrote since the last barrier",
        ),
        (
            "copy 0, commit, barrier, fill 0, wait 0",
            "phase fill overwrites a[0..63] that phase copy may still be copying",
        ),
        ("copy 0, commit", "phase copy copies a[0..63], and the kernel ends without a wait for it"),
        (
            "copy 0, commit, [, wait 0, barrier, ahead now, commit, use now, ], wait 0",
            "phase use reads a[0..63] that phase copy may still be copying",
        ),
    ],
)
def test_race_is_reported(text: str, reason: str) -> None:
    assert reason in short(text)


def test_one_thread_needs_no_barrier_but_waits() -> None:
    assert short("fill 0, use 0, fill 0", threads=1) == ()
    assert short("copy 0, commit, wait 0, use 0", threads=1) == ()
    assert short("copy 0, commit, use 0, wait 0", threads=1) == (
        "phase use reads a[0..0] that phase copy may still be copying",
    )


def test_elements_beyond_a_buffer_are_reported() -> None:
    assert "phase fill touches a[64..264], which has 128 elements" in short("fill 1", threads=201)


LANES = """
var tid < 40
kernel blocks 1 threads 40 {
  buffer lanes: f32[%d]
  phase compute init %s{
    initialise acc[1]: f32 for sum
    reduce_threads acc[1]: f32 sum over 16
  }
}
"""


@pytest.mark.parametrize(
    ("scratch", "when", "reasons"),
    [
        (48, "", ()),
        (48, "when 0 <= tid < 40 ", ()),
        (48, "when 0 <= tid < 32 ", ("phase init combines lanes of acc under the condition 0 <= tid < 32",)),
        (40, "", ("phase init combines lanes of acc in 48 places of 4 bytes, scratch has 160 bytes",)),
    ],
)
def test_all_threads_take_part_where_lanes_combine(scratch: int, when: str, reasons: tuple[str, ...]) -> None:
    assert check_barriers(parse_ir(LANES % (scratch, when))) == reasons


@st.composite
def kernels(draw: st.DrawFn) -> list[Kernel]:
    """Draw a group and lower legal points of a few templates.

    Most of them stage operands.
    """
    group = draw(st.one_of(chains(), pairs()))
    space = make_space(group, GPU)
    staging = [s for s in space.templates if any(part.stages_any for part in s.segments)]
    chosen = draw(
        st.lists(
            st.sampled_from(draw(st.sampled_from((staging or space.templates, space.templates)))),
            min_size=1,
            max_size=3,
        )
    )
    return [
        lower(group, p, {}, GPU)
        for s in dict.fromkeys(chosen)
        for p in legal_points(space, s, draw(st.integers(0, 2**32 - 1)), 3)
    ]


@settings(max_examples=20, deadline=None)
@given(kernels())
def test_opencl_compilers_leave_loops_with_barriers_alone(drawn: list[Kernel]) -> None:
    for kernel in drawn:
        loops = [
            item for item in kernel.items if isinstance(item, Loop) and any(isinstance(i, Barrier) for i in item.body)
        ]
        made = extract(kernel)
        assert emit(made, "opencl").source.count("for (volatile int") >= len(loops)
        assert "volatile int" not in emit(made, "cuda").source


@settings(max_examples=examples(80, 2000), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(kernels())
def test_no_kernel_has_a_race(made: list[Kernel]) -> None:
    for kernel in made:
        note(print_ir(kernel))
        assert check_barriers(kernel) == ()


Items = tuple[Item, ...]


def change_one(
    items: Items, kind: type[Item], change: Callable[[Item], Items]
) -> Iterator[tuple[tuple[int, ...], Items]]:
    """Yield items with one of a kind changed, and its place."""
    for n, item in enumerate(items):
        if isinstance(item, Loop):
            for place, body in change_one(item.body, kind, change):
                yield (n, *place), (*items[:n], evolve(item, body=body), *items[n + 1 :])
        if isinstance(item, kind):
            yield (n,), (*items[:n], *change(item), *items[n + 1 :])


def remove(item: Item) -> Items:
    """Take an item away."""
    return ()


def later(item: Item) -> Items:
    """Wait for one group less."""
    assert isinstance(item, Wait)
    return (Wait(item.pending + 1),)


def is_found(kernel: Kernel, items: Items) -> bool:
    """Return true where a kernel with other items has a race."""
    note(print_ir(evolve(kernel, items=items)))
    return bool(check_barriers(evolve(kernel, items=items)))


@settings(max_examples=examples(40, 1000), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(kernels())
def test_every_barrier_is_needed(made: list[Kernel]) -> None:
    """Every barrier is needed except the one between segments.

    There threads meet once more before they read shared memory: the later segment stages operands.
    """
    for kernel in (k for k in made if k.threads > 1):
        for place, items in change_one(kernel.items, Barrier, remove):
            again = len(place) == 1 and meets_before_it_reads(kernel.items[place[0] + 1 :])
            assert again or is_found(kernel, items)


def meets_before_it_reads(items: Sequence[Item]) -> bool:
    """Return true where a barrier precedes the first shared-memory read."""
    flat = [inner for item in items for inner in (item.body if isinstance(item, Loop) else (item,))]
    reading = (
        isinstance(i, Phase) and any(isinstance(n, Load) and n.space == "shared" for n in post_order(i.roots))
        for i in flat
    )
    return next(
        isinstance(i, Barrier) for i, reads in zip(flat, reading, strict=True) if reads or isinstance(i, Barrier)
    )


@settings(max_examples=examples(40, 1000), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(kernels())
def test_every_asynchronous_wait_and_commit_is_needed(made: list[Kernel]) -> None:
    """Every commit is needed except that of a one-iteration loop.

    It closes an empty group.
    """
    for kernel in made:
        for kind, change in ((Wait, remove), (Wait, later), (Commit, remove)):
            for place, items in change_one(kernel.items, kind, change):
                ring = next(i for i in kernel.items[place[0] :] if isinstance(i, Loop))
                closes = kind is Wait or len(place) == 1 or ring.var.extent > 1
                if closes and any(p.asynchronous for p in phases(ring.body)):
                    assert is_found(kernel, items)


def rows() -> FusedGroup:
    """Return a product whose rows, which lie in shared memory, are reduced."""
    make = builder()
    first = make.node("matmul", make.input(5, 64), make.input(64, 33))
    row = make.node("reduce_max", make.node("add", first, make.input(5, 33)), axes=(1,), keepdims=True)
    group = halves(make, first, 1, make.node("mul", row, make.input(5, 33)))
    assert isinstance(group, FusedGroup)
    return group


def lower_points(group: FusedGroup, count: int = 8) -> Iterator[tuple[Schedule, Kernel]]:
    """Yield some legal points of every structure of a group's space, lowered."""
    space = make_space(group, GPU)
    for structure in space.templates:
        for point in legal_points(space, structure, 1, count):
            yield point, lower(group, point, {}, GPU)


#: Bugs that the fuzzer does not plant, for threads that never meet hang.
HANGS = (
    Bug("barrier", "idle threads miss where lanes combine a row", "passes.lowering.lower:_is_resident",
        "and not frame.when",
        ""),
    Bug("barrier", "idle threads miss where lanes combine", "passes.lowering.reductions:_combine",
        "lanes, state.frame.unrolled",
        "lanes, (), (), state.frame.when"),
)  # fmt: skip
LOWERING = [b for b in BUGS if b.area in ("barrier", "ring") and b.where.startswith("passes.")]


@pytest.mark.parametrize("bug", [*LOWERING, *HANGS], ids=lambda b: b.name)
def test_a_planted_bug_of_lowering_is_a_race(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(check_barriers(kernel) for _, kernel in lower_points(rows()))
    original, wrong = mutate_function(bug)
    monkeypatch.setattr(original, "__code__", wrong.__code__)
    assert any(check_barriers(kernel) for _, kernel in lower_points(rows()))


#: Bugs of loops that load fragments ahead.
STEPS = (
    Bug("ring", "the first step of the next chunk is loaded before that has arrived",
        "passes.lowering.k_loop.software_pipeline:stepped_k_loop",
        "*pipeline.commit, *pipeline.wait]", "*pipeline.commit]"),
    Bug("ring", "a chunk is fetched into the buffer that is being loaded from",
        "passes.lowering.k_loop.software_pipeline:stepped_k_loop",
        "for phase in later]", "for phase in pipeline.fetch(at + pipeline.prefetch_distance + 1).copied]"),
    Bug("ring", "unneeded copies are under way when the kernel ends",
        "passes.lowering.k_loop.software_pipeline:stepped_k_loop",
        "((Wait(0),) if pipeline.is_asynchronous else ())", "()"),
)  # fmt: skip


@pytest.mark.parametrize("bug", STEPS, ids=lambda b: b.name)
def test_a_planted_bug_of_steps_is_a_race(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    group = product(DType.BF16, "", (1, 40, 40, 96), (False, False))
    schedule = ahead_schedule(group, "bf16", (2, 4), (1, 2), 3, 1)
    assert check_barriers(lower(group, schedule, {}, GPU)) == ()
    original, wrong = mutate_function(bug)
    monkeypatch.setattr(original, "__code__", wrong.__code__)
    assert check_barriers(lower(group, schedule, {}, GPU))


def test_idle_threads_have_own_scratch_in_reductions() -> None:
    uneven = 0
    for point, kernel in lower_points(rows()):
        lanes = max(s.reduction_threads for s in point.segments)
        uneven += bool(point.threads % lanes)
        scratch = [b for b in kernel.shared if b.name == "lanes"]
        assert all(b.elements % lanes == 0 and b.elements >= point.threads for b in scratch)
    assert uneven


def scratch_accesses(source: str, barrier: str) -> str:
    """Return the scratch accesses of a lane-combining loop, by line.

    They are w(rite), r(ead), and | for a barrier.
    """
    touched = ""
    for line in source.splitlines():
        found = re.search(r"\(\(\S.*?\*\)lanes\)\[", line)
        left = line.partition(" = ")[0]
        touched += "|" if line.strip() == barrier else "" if not found else "w" if "lanes)" in left else "r"
    return touched


def test_lanes_meet_whenever_one_of_them_wrote() -> None:
    """A barrier separates a write from reads and from the next write.

    That write may be the next register's.
    """
    seen = 0
    for point, kernel in lower_points(rows(), 4):
        if max(s.reduction_threads for s in point.segments) < 2:
            continue
        source = emit(extract(kernel), "opencl").source
        for loop in re.findall(r"for \(int e = .*?\n((?:.*lanes\)\[.*\n|.*barrier.*\n)+)", source):
            touched = scratch_accesses(loop, DIALECTS["opencl"].barrier)
            seen += "w" in touched
            assert not re.search("w[wr]|rw", 2 * touched), loop
    assert seen
