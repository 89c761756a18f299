"""Stages that one thread fills by bulk copies, exact for integers.

On OpenCL all threads copy the boxes. For CUDA the kernels are compiled: ptxas serialises no product and spills nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernel
from cuts.ir import (
    Barrier,
    BulkFetch,
    FusedGroup,
    HorizontalKernel,
    Index,
    Kernel,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Producer,
    ProductWait,
    Schedule,
    Storage,
    as_index,
    bulk_fetches,
    kernel_violations,
    variables,
)
from cuts.ir.kernel import Item
from cuts.ir.types import DType
from cuts.passes.lowering import extract, lower
from cuts.passes.lowering.races import check_barriers
from cuts.passes.model import features_of
from cuts.passes.schedule import check_schedule
from cuts.passes.schedule.space import make_space
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .cases import legal_point, legal_points
from .test_matrix_instructions import GPU, _device, check, product
from .test_warpgroup_products import SMALL_SHARED, halves, large, point, product_of_two, product_of_type


def with_tma(schedule: Schedule, form: int = 1) -> Schedule:
    """Return a schedule whose operands are staged by bulk copies."""
    (segment,) = schedule.segments
    (loop,) = segment.reductions
    return evolve(schedule, segments=(evolve(segment, reductions=(evolve(loop, tma=form),)),))


#: Without and with a producer, and with one for all tiles of a block: a small machine has few blocks.
FORMS = (1, 2, 3)
SMALL_GPU = evolve(GPU, NUM_SM=3)
#: Swizzles, warpgroups, instructions, columns, stages, K block, and a shape.
CASES = (
    ((128, 128), 1, 1, 64, 3, 64, (1, 64, 64, 512)),
    ((128, 128), 2, 1, 128, 4, 64, (1, 256, 128, 200)),
    ((128, 128), 1, 2, 64, 6, 64, (2, 256, 64, 1088)),
    ((64, 64), 1, 1, 96, 3, 32, (1, 128, 96, 256)),
    ((0, 0), 1, 1, 32, 3, 16, (1, 64, 32, 40)),
)
#: Whether A is K-major, and B.
MAJORS = ((True, True), (True, False), (False, True), (False, False))


def case_point(case: tuple, deep: tuple[bool, bool], kind: DType, form: int) -> tuple[FusedGroup, Schedule]:
    swizzles, groups, atoms, columns, stages, chunk, shape = case
    group = halves(shape, deep, kind)
    vector = 8 if columns % 32 == 0 else 2
    return group, with_tma(point(group, deep, swizzles, groups, atoms, columns, vector, stages, chunk), form)


@needs_opencl
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deep", MAJORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_bulk_copies_bring_the_operands_opencl(case: tuple, deep: tuple[bool, bool], form: int) -> None:
    check(_device("opencl"), SMALL_GPU, *case_point(case, deep, DType.BF16 if deep[1] else DType.F16, form))


@needs_cuda
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("deep", MAJORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_bulk_copies_bring_the_operands_cuda(case: tuple, deep: tuple[bool, bool], form: int) -> None:
    for kind in (DType.F16, DType.BF16):
        check(_device("cuda"), SMALL_GPU, *case_point(case, deep, kind, form))


@needs_opencl
@pytest.mark.parametrize("form", [0, *FORMS])
@pytest.mark.parametrize(("stages", "depth"), [(1, 40), (2, 128), (2, 104)])
def test_shallow_loops_refill_no_stage_opencl(stages: int, depth: int, form: int) -> None:
    group = halves((1, 128, 64, depth), (True, True))
    schedule = with_tma(point(group, (True, True), stages=stages), form)
    kernel = lower(group, schedule, {}, SMALL_GPU)
    assert check_barriers(kernel) == ()
    assert not any(fetch.when for fetch in bulk_fetches(kernel.items))
    check(_device("opencl"), SMALL_GPU, group, schedule)


@needs_opencl
@pytest.mark.parametrize("form", [3, 4])
@pytest.mark.parametrize(("stages", "depth"), [(2, 40), (3, 104), (4, 128), (8, 192)])
def test_stages_hold_further_tiles_opencl(stages: int, depth: int, form: int) -> None:
    group = halves((1, 320, 128, depth), (True, False))
    schedule = with_tma(point(group, (True, False), stages=stages), form)
    assert check_barriers(lower(group, schedule, {}, SMALL_GPU)) == ()
    check(_device("opencl"), SMALL_GPU, group, schedule)


def test_a_refilled_pipeline_has_three_stages() -> None:
    group = halves((1, 128, 64, 192), (True, True))
    assert any(
        "at least 3 stages" in fault for fault in check_schedule(group, point(group, (True, True), stages=2), GPU)
    )


@needs_opencl
def test_ragged_columns_are_zeros_opencl() -> None:
    group = halves((1, 64, 72, 136), (True, True))
    check(_device("opencl"), GPU, group, with_tma(point(group, (True, True))))
    group = halves((1, 128, 40, 136), (True, False))
    check(_device("opencl"), GPU, group, with_tma(point(group, (True, False))))


@needs_opencl
@pytest.mark.parametrize(("rows", "deep", "copies"), [(70, True, 2), (136, False, 3)])
def test_ragged_rows_are_boxes_opencl(rows: int, deep: bool, copies: int) -> None:
    """Lines of rows that end within a block are a copy each."""
    group = halves((1, rows, 64, 136), (deep, True))
    schedule = with_tma(point(group, (deep, True), groups=2))
    first, *_ = bulk_fetches(lower(group, schedule, {}, GPU).items)
    assert len(first.copies) == copies
    check(_device("opencl"), GPU, group, schedule)


def test_each_operand_is_one_box() -> None:
    for deep in MAJORS:
        group = halves((1, 4096, 4096, 4096), deep, DType.BF16)
        kernel = lower(group, with_tma(point(group, deep, groups=2, columns=256, stages=4)), {}, GPU)
        assert [len(fetch.copies) for fetch in bulk_fetches(kernel.items)] == [2, 2, 2]
        assert {fetch.nbytes for fetch in bulk_fetches(kernel.items)} == {(128 + 256) * 128}
        assert not any(item for item in kernel.items if getattr(item, "kind", "") == "fetch")


@pytest.mark.parametrize(
    ("shape", "deep"),
    [((1, 60, 72, 64), (False, True)), ((1, 64, 64, 60), (True, True))],
)
def test_operands_that_are_no_box_are_named(shape: tuple[int, int, int, int], deep: tuple[bool, bool]) -> None:
    group = halves(shape, deep)
    faults = check_schedule(group, with_tma(point(group, deep)), GPU)
    assert "operand 0 of t is no box of a tensor map" in faults


def test_only_products_in_place_are_staged_so() -> None:
    group = product(DType.F16, "", (1, 64, 64, 64), (False, True))
    good = point(group, (True, True))
    (segment,) = good.segments
    loop = evolve(segment.reductions[0], mma="m16n8k16_f16", tma=1)
    assert check_schedule(group, evolve(good, segments=(evolve(segment, reductions=(loop,)),)), GPU)


def test_views_with_odd_pitches_are_copied_by_threads() -> None:
    group = halves((1, 64, 64, 512), (True, True))
    schedule = with_tma(point(group, (True, True)))
    assert bulk_fetches(lower(group, schedule, {"a": Storage("a", 0, (0, 1024, 1))}, GPU).items)
    for storage in (Storage("a", 0, (0, 1025, 1)), Storage("a", 1, (0, 1024, 1)), Storage("a", 0, (0, 1024, 1), by=4)):
        kernel = lower(group, schedule, {"a": storage}, GPU)
        assert not bulk_fetches(kernel.items)
        assert check_barriers(kernel) == ()


def small_kernel(stages: int = 3, depth: int = 1024, form: int = 1) -> Kernel:
    group = halves((1, 64, 64, depth), (True, True))
    return lower(group, with_tma(point(group, (True, True), stages=stages), form), {}, SMALL_GPU)


def replace_items(kernel: Kernel, replace: Callable[[Item], Item | None]) -> Kernel:
    """Return a kernel with other items, without those that become None.

    Items of loops and of a producer count.
    """

    def replace_all(items: tuple[Item, ...]) -> tuple[Item, ...]:
        inner = (evolve(i, body=replace_all(i.body)) if isinstance(i, Loop) else replace(i) for i in items)
        return tuple(i for i in inner if i is not None)

    producer = tuple(evolve(p, body=replace_all(p.body)) for p in kernel.producer)
    return evolve(kernel, items=replace_all(kernel.items), producer=producer)


def drop(kind: type) -> Callable[[Item], Item | None]:
    return lambda item: None if isinstance(item, kind) else item


def with_fields(kind: type, **fields: object) -> Callable[[Item], Item | None]:
    return lambda item: evolve(item, **fields) if isinstance(item, kind) else item


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stages", [3, 4, 6, 8])
@pytest.mark.parametrize("depth", [64, 128, 1024, 8192])
def test_each_phase_is_waited_for_once(stages: int, depth: int, form: int) -> None:
    kernel = small_kernel(stages, depth, form)
    assert kernel_violations(kernel) == []
    assert check_barriers(kernel) == ()


@pytest.mark.parametrize(
    ("bug", "report"),
    [
        (drop(MbarrierWait), "may still be copying"),
        (drop(BulkFetch), "for a phase that nothing begins"),
        (drop(MbarrierInit), "before it is initialised"),
        (drop(Barrier), "before it is initialised"),
        (drop(ProductWait), "may still be reading"),
        (with_fields(MbarrierWait, parity=Index(0)), "has parity 0, its phase 1 has 1"),
        (with_fields(MbarrierWait, parity=Index(1)), "has parity 1, its phase 0 has 0"),
        (with_fields(BulkFetch, nbytes=16384 - 16), "expects 16368 bytes at mbarrier full[0], its copies bring 16384"),
        (with_fields(BulkFetch, nbytes=16384 + 16), "expects 16400 bytes"),
        (with_fields(BulkFetch, slot=Index(0)), "before its last phase was waited for"),
    ],
)
def test_planted_bugs_are_found(bug: Callable[[Item], Item | None], report: str) -> None:
    faults = check_barriers(replace_items(small_kernel(), bug))
    assert any(report in fault for fault in faults), faults


#: Waits of the producer, and of the threads that multiply.
EMPTY_STAGES, FULL_STAGES = "empty", "full"


def on_barriers(barriers: str, bug: Callable[[Item], Item | None]) -> Callable[[Item], Item | None]:
    return lambda item: bug(item) if getattr(item, "barriers", "") == barriers else item


@pytest.mark.parametrize(
    ("bug", "report"),
    [
        (on_barriers(EMPTY_STAGES, drop(MbarrierWait)), "before its last phase was waited for"),
        (on_barriers(FULL_STAGES, drop(MbarrierWait)), "before all of it was written"),
        (drop(BulkFetch), "for a phase that nothing begins"),
        (drop(MbarrierArrive), "for a phase that nothing begins"),
        (drop(ProductWait), "is released while products"),
        (with_fields(ProductWait, pending=2), "is released while products"),
        (on_barriers(EMPTY_STAGES, drop(MbarrierInit)), "4 warps arrive at empty, which expects 0"),
        (on_barriers(EMPTY_STAGES, with_fields(MbarrierInit, arrivals=1)), "4 warps arrive at empty, which expects 1"),
        (on_barriers(FULL_STAGES, with_fields(MbarrierInit, arrivals=2)), "which expects 2 arrivals"),
        (on_barriers(EMPTY_STAGES, with_fields(MbarrierWait, parity=Index(0))), "for a phase that nothing begins"),
        (on_barriers(EMPTY_STAGES, with_fields(MbarrierWait, parity=Index(1))), "ends before release 1 of the stage"),
        (on_barriers(FULL_STAGES, with_fields(MbarrierWait, parity=Index(0))), "has parity 0, its phase 1 has 1"),
        (with_fields(MbarrierArrive, slot=Index(0)), "for a phase that nothing begins"),
        (with_fields(BulkFetch, nbytes=16384 - 16), "expects 16368 bytes"),
    ],
)
def test_bugs_beside_a_producer_are_found(bug: Callable[[Item], Item | None], report: str) -> None:
    faults = check_barriers(replace_items(small_kernel(form=2), bug))
    assert any(report in fault for fault in faults), faults


def test_a_stage_is_released_after_its_products_only() -> None:
    def early(item: Item) -> Item:
        if not isinstance(item, MbarrierArrive):
            return item
        (step,) = {v for guard in item.when for v in variables(guard.index)}
        return evolve(item, slot=as_index(step) % 3, when=())

    faults = check_barriers(replace_items(small_kernel(form=2), early))
    assert any("is released while products" in fault for fault in faults), faults


def persistent_kernel(stages: int = 3, depth: int = 320, tiles: int = 16, form: int = 3) -> Kernel:
    """Return a kernel whose blocks take several tiles each."""
    group = halves((1, 64 * tiles, 64, depth), (True, False))
    return lower(group, with_tma(point(group, (True, False), vector=8, stages=stages), form), {}, SMALL_GPU)


@pytest.mark.parametrize("form", [3, 4])
@pytest.mark.parametrize("stages", [3, 4, 6, 8])
@pytest.mark.parametrize("depth", [64, 192, 320, 1024])
def test_a_ring_goes_on_with_the_next_tile(stages: int, depth: int, form: int) -> None:
    kernel = persistent_kernel(stages, depth, form=form)
    assert kernel.teams == form - 2
    assert (kernel.blocks, kernel.launched, kernel.turn.extent) == (16, 3, 6)
    assert kernel_violations(kernel) == []
    assert check_barriers(kernel) == ()
    assert emit(extract(kernel), "cuda").grid == (3, 1, 1)


@needs_opencl
@pytest.mark.parametrize("form", [3, 4])
@pytest.mark.parametrize("shape", [(1, 320, 224, 328), (2, 256, 64, 64), (1, 64, 640, 448)])
@pytest.mark.parametrize("deep", MAJORS)
def test_tiles_in_turn_opencl(shape: tuple[int, int, int, int], deep: tuple[bool, bool], form: int) -> None:
    group = halves(shape, deep)
    check(_device("opencl"), SMALL_GPU, group, with_tma(point(group, deep, vector=8), form))


@pytest.mark.parametrize(
    ("bug", "report"),
    [
        (lambda i: None if isinstance(i, MbarrierArrive) and not i.when else i, "a release of its stage that never"),
        (on_barriers(EMPTY_STAGES, drop(MbarrierWait)), "before its last phase was waited for"),
        (on_barriers(FULL_STAGES, with_fields(MbarrierWait, slot=Index(0))), "for a phase that nothing begins"),
        (drop(ProductWait), "is released while products"),
    ],
)
def test_bugs_between_tiles_are_found(bug: Callable[[Item], Item | None], report: str) -> None:
    faults = check_barriers(replace_items(persistent_kernel(), bug))
    assert any(report in fault for fault in faults), faults


@needs_opencl
@pytest.mark.parametrize(("name", "deep"), [("f8e4m3", 128), ("i8", 128), ("tf32", 32)])
def test_tiles_of_other_numbers_in_turn_opencl(name: str, deep: int) -> None:
    group = product_of_type(name, (1, 448, 64, 3 * deep + 16), (True, True))
    schedule = with_tma(point(group, (True, True), (128, 128), 1, 1, 64, 2, 3, deep), 3)
    assert check_barriers(lower(group, schedule, {}, SMALL_GPU)) == ()
    check(_device("opencl"), SMALL_GPU, group, schedule)


@pytest.mark.parametrize("form", [3, 4])
def test_few_tiles_take_one_turn(form: int) -> None:
    kernel = persistent_kernel(tiles=3, form=form)
    assert (kernel.turn.extent, kernel.teams) == (1, 1)
    assert check_barriers(kernel) == ()


@needs_toolchain
@pytest.mark.parametrize(("atoms", "columns"), [(1, 64), (2, 128), (1, 256)])
def test_teams_compile_without_serialisation(atoms: int, columns: int) -> None:
    schedule = with_tma(point(large(), (True, False), (128, 128), 1, atoms, columns, 2, 4), 4)
    assert check_schedule(large(), schedule, GPU) == []
    kernel = lower(large(), schedule, {}, SMALL_GPU)
    assert (kernel.teams, kernel.launched_threads % 256 > 0) == (2, True)
    cubin = compile_kernel(emit(extract(kernel), "cuda"), GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)
    wide = with_tma(point(large(), (True, False), (128, 128), 2, atoms, columns, 2, 4), 4)
    assert any("one warpgroup each" in fault for fault in check_schedule(large(), wide, GPU))


def _with_barrier(kernel: Kernel) -> Kernel:
    """Return a kernel whose loops begin with a barrier."""
    items = (evolve(i, body=(Barrier(), *i.body)) if isinstance(i, Loop) else i for i in kernel.items)
    return evolve(kernel, items=tuple(items))


def test_producers_wait_and_fetch_only() -> None:
    kernel = small_kernel(form=2)
    assert kernel.launched_threads == kernel.threads + 32
    (producer,) = kernel.producer
    for broken, reason in (
        (evolve(kernel, producer=(producer, producer)), "2 producers"),
        (evolve(kernel, producer=(Producer((Barrier(), *producer.body)),)), "neither waits nor fetches: Barrier"),
        (_with_barrier(kernel), "meet once"),
    ):
        assert any(reason in error.message for error in kernel_violations(broken)), reason


def test_a_producer_has_a_warp_of_its_own() -> None:
    kernel = extract(small_kernel(form=2))
    function = emit(kernel, "cuda")
    assert function.block == (kernel.threads + 32, 1, 1)
    assert f"if (tid >= {kernel.threads}) {{" in function.source
    assert emit(kernel, "opencl").block == (kernel.threads, 1, 1)


def test_many_sums_take_registers_of_the_producer() -> None:
    for groups, columns, threads, taken in ((1, 64, 32, 0), (1, 256, 32, 0), (2, 256, 128, 240), (2, 128, 32, 0)):
        schedule = with_tma(point(large(), (True, False), groups=groups, columns=columns, stages=4), 2)
        kernel = lower(large(), schedule, {}, GPU)
        (producer,) = kernel.producer
        assert (producer.threads, producer.registers, producer.others) == (threads, 24 if taken else 0, taken)
        assert (groups * 128 * taken + threads * producer.registers) <= GPU.registers_per_sm
        assert ("setmaxnreg" in emit(extract(kernel), "cuda").source) is bool(taken)
        assert features_of(large(), schedule, GPU).limit == (240 if taken else 168 if groups == 2 else 255)


def test_a_stage_that_products_read_is_not_refilled() -> None:
    kernel = small_kernel()
    size = next(b.elements for b in kernel.shared if b.name.endswith("s0")) // 3

    def early(item: Item) -> Item:
        if not isinstance(item, BulkFetch) or not item.when:
            return item
        copies = tuple(evolve(c, address=(c.address + 2 * size)) for c in item.copies[:1])
        return evolve(item, copies=(*copies, *item.copies[1:]))

    faults = check_barriers(replace_items(kernel, early))
    assert any("may still be reading" in fault or "touches" in fault for fault in faults), faults


def test_faults_of_maps_and_copies_are_named() -> None:
    kernel = small_kernel()
    first = kernel.maps[0]
    for broken, reason in (
        (
            evolve(kernel, maps=(evolve(first, strides=tuple(24 for _ in first.strides)), *kernel.maps[1:])),
            "no multiples of 16",
        ),
        (evolve(kernel, maps=(evolve(first, tensor="z"), *kernel.maps[1:])), "is read so"),
        (evolve(kernel, maps=kernel.maps[1:]), "no copy by map"),
        (evolve(kernel, maps=(first, first)), "have one name"),
        (replace_items(kernel, with_fields(MbarrierWait, barriers="s0r0s0")), "no shared buffer of u64"),
    ):
        assert any(reason in error.message for error in kernel_violations(broken)), reason


def test_kernels_with_maps_share_no_launch() -> None:
    kernel = extract(small_kernel())
    assert not HorizontalKernel((kernel, kernel)).legal


def test_maps_are_the_first_arguments() -> None:
    function = emit(extract(small_kernel()), "cuda")
    assert [(a.tensor, a.map is not None) for a in function.arguments] == [
        ("a", True), ("c", True), ("y", False), ("d", False)
    ]  # fmt: skip
    assert "const __grid_constant__ cuts_map p0" in function.source


@needs_toolchain
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("groups", "atoms", "columns", "stages"), [(2, 1, 256, 4), (2, 2, 128, 4), (2, 2, 192, 4), (1, 1, 64, 3)]
)
def test_kernels_compile_without_serialisation(groups: int, atoms: int, columns: int, stages: int, form: int) -> None:
    group = large()
    schedule = with_tma(point(group, (True, False), (128, 128), groups, atoms, columns, 2, stages), form)
    assert check_schedule(group, schedule, GPU) == []
    cubin = compile_kernel(emit(extract(lower(group, schedule, {}, SMALL_GPU)), "cuda"), GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)


@needs_opencl
@pytest.mark.parametrize("form", [0, *FORMS])
@pytest.mark.parametrize(("groups", "atoms"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("shape", [(1, 208, 96, 200), (2, 144, 64, 64)])
def test_rows_end_within_a_block_opencl(shape: tuple[int, int, int, int], groups: int, atoms: int, form: int) -> None:
    group = halves(shape, (True, False))
    schedule = point(group, (True, False), (128, 128), groups, atoms, 64, 8, 3 if shape[3] > 64 else 1)
    check(_device("opencl"), SMALL_GPU, group, with_tma(schedule, form))


def test_ragged_rows_have_bulk_copies() -> None:
    for rows, bulk in ((512, {1: True}), (6304, {1: True}), (1000, {1: True})):
        templates = make_space(halves((1, rows, 512, 512), (True, True)), GPU).templates
        found = {t.segments[0].rows: t.segments[0].bulk for t in templates if t.segments[0].mma.startswith("m64")}
        assert found == bulk, "results lie along rows where these alone are boxes"


@needs_opencl
def test_results_along_rows_leave_in_pairs_opencl() -> None:
    group = halves((1, 40, 64, 192), (True, True))
    (structure,) = (t for t in make_space(group, GPU).templates if t.segments[0].bulk)
    points = [p for p in legal_points(make_space(group, GPU), structure, 0, 64) if p.segments[0].reductions[0].tma]
    assert points and all(p.segments[0].dims[2].vector == 2 for p in points)
    check(_device("opencl"), GPU, group, points[0])


@needs_toolchain
@pytest.mark.parametrize("form", [0, *FORMS])
def test_one_k_block_compiles_without_serialisation(form: int) -> None:
    group = halves((1, 512, 512, 64), (True, False))
    schedule = with_tma(point(group, (True, False), (128, 128), 1, 2, 128, 8, 1), form)
    assert check_schedule(group, schedule, GPU) == []
    cubin = compile_kernel(emit(extract(lower(group, schedule, {}, SMALL_GPU)), "cuda"), GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)


@needs_toolchain
@pytest.mark.parametrize(("atoms", "columns"), [(1, 192), (2, 96)])
def test_promoted_sums_take_the_registers_of_a_producer(atoms: int, columns: int) -> None:
    group = product_of_two((DType.F8E4M3, DType.F8E5M2), (1, 4096, 4096, 4096))
    schedule = with_tma(point(group, (True, True), (128, 128), 2, atoms, columns, 8, 4, 128), 2)
    assert check_schedule(group, schedule, GPU) == []
    cubin = compile_kernel(emit(extract(lower(group, schedule, {}, GPU)), "cuda"), GPU.arch)
    assert (cubin.serialised, cubin.spill_bytes) == ("", 0)


def test_spaces_have_bulk_copies_of_boxes_only() -> None:
    for shape, deep, found in (
        ((1, 256, 256, 512), (True, False), True),
        ((1, 256, 256, 512), (False, False), True),
        ((1, 200, 256, 512), (True, False), True),
        ((1, 200, 250, 512), (True, False), False),
    ):
        space = make_space(halves(shape, deep), GPU)
        (template,) = [t for t in space.templates if t.segments[0].mma.startswith("m64")]
        assert ("s0.tma" in {name for knob in template.parameters for name in knob.names}) is found


def test_features_count_one_copy_per_operand() -> None:
    group = halves((1, 256, 256, 512), (True, False))
    plain = point(group, (True, False))
    copied, bulk = (features_of(group, schedule, GPU) for schedule in (plain, with_tma(plain)))
    kernel = lower(group, with_tma(plain), {}, GPU)
    assert bulk.shared == kernel.shared_bytes == copied.shared + 32
    assert copied.copies / bulk.copies == 64 * 64 / 8
    produced, kernel = features_of(group, with_tma(plain, 2), GPU), lower(group, with_tma(plain, 2), {}, GPU)
    assert produced.shared == kernel.shared_bytes == copied.shared + 64
    assert produced.barriers < bulk.barriers == copied.barriers
    assert bulk.certain < copied.certain
    assert bulk.fetched == copied.fetched


@st.composite
def drawn_points(draw: st.DrawFn) -> tuple[FusedGroup, Schedule]:
    """Draw a product, and a legal point with bulk copies."""
    rows, columns = draw(st.sampled_from((64, 128, 192))), draw(st.sampled_from((64, 72, 128)))
    shape = (draw(st.sampled_from((1, 2))), rows, columns, draw(st.sampled_from((8, 64, 136, 200))))
    kind, deep = draw(st.sampled_from((DType.F16, DType.BF16))), draw(st.booleans())
    group = halves(shape, (True, deep), kind)
    space = make_space(group, SMALL_SHARED)
    template = next((t for t in space.templates if t.segments[0].bulk), None)
    assume(template is not None)
    assert template is not None
    schedule = legal_point(space, template, draw(st.integers(0, 1 << 30)))
    assume(schedule is not None and schedule.segments[0].reductions[0].tma)
    assert schedule is not None
    return group, schedule


@needs_opencl
@settings(max_examples=examples(6, 100), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_points())
def test_points_with_bulk_copies_compute_the_reference_opencl(drawn: tuple[FusedGroup, Schedule]) -> None:
    check(_device("opencl"), SMALL_SHARED, *drawn)


@needs_cuda
@settings(max_examples=examples(50, 500), deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn_points())
def test_points_with_bulk_copies_compute_the_reference_cuda(drawn: tuple[FusedGroup, Schedule]) -> None:
    check(_device("cuda"), SMALL_SHARED, *drawn)


def test_boxes_begin_at_multiples_of_their_alignment() -> None:
    """Two columns of 32 bytes are half of the alignment."""
    group = halves((1, 64, 72, 8), (True, True))
    space = make_space(group, SMALL_SHARED)
    for template in (each for each in space.templates if each.segments[0].bulk):
        for seed in range(40):
            schedule = legal_point(space, template, seed)
            if schedule is not None and schedule.segments[0].reductions[0].tma:
                assert kernel_violations(lower(group, schedule, {}, SMALL_SHARED)) == []
