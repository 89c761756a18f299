"""Measurement in a child process, against PoCL.

Checks, crashes, hangs, and the whole way from a model to a tuned plan.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Pointer
from cuts.backends.devices import open_device
from cuts.backends.library import RoutineError
from cuts.ir.affine import Var, as_index
from cuts.ir.compiled import KernelFunction, Storage
from cuts.ir.errors import BackendError
from cuts.ir.expr import Read
from cuts.ir.segment import FusedGroup, Output, Segment
from cuts.ir.text import parse_ir
from cuts.ir.types import DType, TensorType
from cuts.numerics.comparison import relative_error
from cuts.numerics.group_inputs import index_ranges
from cuts.numerics.random_numbers import PERIOD
from cuts.numerics.tolerance import group_tolerance
from cuts.passes.fusion.interpret import interpret
from cuts.passes.partitioning.shared_launches import join_forms
from cuts.passes.schedule.selection.choose import choose
from cuts.search.building.factory import BuildResult, Factory
from cuts.search.building.workers import Job, Workers
from cuts.search.database import Database, summary_of
from cuts.search.measurement.bench import DeviceBench
from cuts.search.measurement.compare import BLOCK, Comparer
from cuts.search.measurement.device import MeasuringDevice
from cuts.search.measurement.result_checks import ResultChecker
from cuts.search.measurement.task_data import NUM_PLACEMENTS, PLACEMENT_ALIGNMENT
from cuts.search.measurement.verdicts import DeviceAnswer, TimingTurns, Verdict
from cuts.search.processes.child import Child, ChildLost
from cuts.search.settings import Settings
from cuts.search.tasks.data import _repeat, addresses, elements, make_reference, random_inputs, span, view
from cuts.search.tasks.kernels import make_kernel
from cuts.search.tasks.oracle import MAX_WHOLE_EVALUATIONS, evaluations, expected_outputs
from cuts.search.tasks.pruning_certificate import prove, simple_schedule
from cuts.search.tasks.tuning_task import TuningTask
from cuts.search.tuner.executor import SearchExecutor
from cuts.search.tuner.tuner import Tuner
from cuts.tests.cli.conftest import Cuts, cuts  # noqa: F401
from cuts.tests.needs import needs_opencl
from hypothesis import given
from hypothesis import strategies as st

from .fakes import MACHINE, OPENCL, group_of, problem_of

pytestmark = [pytest.mark.as_users_build, pytest.mark.long]

CASES = {
    "conv": ("conv", ((2, 3, 9, 9), (4, 3, 3, 3)), {"pads": (1, 1, 1, 1)}),
    "softmax": ("softmax", ((5, 33),), {}),
    "pool": ("max_pool", ((2, 3, 8, 8),), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "matmul": ("matmul", ((7, 13), (13, 11)), {}),
    "number": ("reduce_sum", ((7, 13),), {"keepdims": 0}),
}


@pytest.fixture(scope="module")
def bench() -> Iterator[DeviceBench]:
    made = DeviceBench(OPENCL, limit=60.0)  # nothing here hangs, however busy the machine is
    yield made
    made.close()


def build_candidate(problem: TuningTask, number: int = 0) -> BuildResult:
    return BuildResult(make_kernel(problem, choose(problem.form, OPENCL, count=number + 1)[number].schedule))


def spoil(made: BuildResult, before: str, after: str = "") -> BuildResult:
    """Return the kernel with code before and after its body.

    One block runs the second code last.
    """
    assert made.kernel is not None
    head, body = made.kernel.source.rsplit("const int blk", 1)
    body = body.rstrip().removesuffix("}")
    return BuildResult(evolve(made.kernel, source=f"{head}{before}\n  const int blk{body}  {after}\n}}\n"))


def last_writes(element: int) -> str:
    """Return code by which the last block overwrites a right number."""
    last = "get_group_id(0) == get_num_groups(0) - 1 && tid == 0"
    return f"barrier(CLK_GLOBAL_MEM_FENCE); if ({last}) p0[{element}] = 77.0f;"


@pytest.mark.parametrize("name", CASES)
def test_sampled_values_are_those_of_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form = group_of(*CASES[name])
    generator = np.random.default_rng(0)
    arrays = {t: generator.standard_normal(form.tensors[t].shape).astype(np.float32) for t in form.inputs}
    whole = interpret(form, arrays)
    monkeypatch.setattr("cuts.search.tasks.oracle.MAX_WHOLE_EVALUATIONS", 0)
    for tensor, sample in expected_outputs(form, arrays, count=40).items():
        np.testing.assert_allclose(sample.values, whole[tensor][sample.places], rtol=1e-12)
        for axis, extent in enumerate(whole[tensor].shape):
            assert {0, extent - 1} <= set(sample.places[axis])


@pytest.mark.parametrize(
    ("rows", "terms", "evaluated"), [(7, 40, 7), (90, 40, 80), (90, 900, 44), (90, 4000, 16), (5, 4000, 5)]
)
def test_no_element_is_evaluated_twice(rows: int, terms: int, evaluated: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand random instances of 64 channels cover each thirty times."""
    form = group_of("reduce_sum", ((rows, terms),), {"axes": (1,), "keepdims": 0})
    x = np.random.default_rng(0).standard_normal((rows, terms)).astype(np.float32)
    for name, value in {
        "MAX_WHOLE_EVALUATIONS": 0,
        "MAX_SAMPLE_EVALUATIONS": 40_000,
        "MIN_SAMPLED_ELEMENTS": 16,
    }.items():
        monkeypatch.setattr(f"cuts.search.tasks.oracle.{name}", value)
    (sample,) = expected_outputs(form, {"x0": x}, count=80).values()
    places = sample.places[0]
    assert len(places) == evaluated
    assert evaluated > rows // 2 or {0, rows - 1} <= set(places), "borders are among them"
    assert evaluated < rows or len(set(places)) == rows
    np.testing.assert_allclose(sample.values, x.astype(np.float64).sum(1)[places], rtol=1e-12)


@pytest.mark.parametrize("count", [0, 3, 4, 21, 22])
def test_numbers_repeat_until_there_are_enough(count: int) -> None:
    values = np.arange(7, dtype=np.float32)[:count]
    np.testing.assert_array_equal(_repeat(values, count), np.resize(values, count))


def test_missing_memory_is_reported_before_repetition() -> None:
    begun = time.process_time()
    with pytest.raises(MemoryError):
        _repeat(np.zeros(7, np.float32), 1 << 50)
    assert time.process_time() - begun < 1


@needs_opencl
def test_memory_shortage_costs_one_comparison_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*asked: object) -> None:
        raise MemoryError("Unable to allocate 3.00 GiB")

    device, problem = MeasuringDevice(OPENCL), problem_of()
    kernel = build_candidate(problem).kernel
    assert kernel is not None
    with monkeypatch.context() as patch:
        patch.setattr(ResultChecker, "difference", none_left)
        verdict = device.check(problem.key, kernel, None, problem)
    assert verdict == Verdict("failed", "no memory on the host to compare what it writes: Unable to allocate 3.00 GiB")
    assert device.check(problem.key, kernel, None) == Verdict("ok")


def test_a_tensor_without_axes_has_one_place() -> None:
    (sample,) = expected_outputs(group_of(*CASES["number"]), {"x0": np.ones((7, 13), np.float32)}).values()
    assert sample.places == () and sample.values.tolist() == [91.0]


def test_a_simple_schedule_stages_nothing() -> None:
    schedule = simple_schedule(group_of("matmul", ((256, 256), (256, 256))), OPENCL)
    assert schedule is not None
    assert not any(r.staging for s in schedule.segments for r in s.reductions)


def test_small_space_is_proven_whole_large_by_sample() -> None:
    small, large = prove(TuningTask(group_of("relu", ((64,),)), {}, OPENCL, MACHINE), 1e-9), prove(problem_of(256), 1.0)
    assert (small.exact, small.share) == (True, 1.0)
    assert (large.exact, large.share) == (False, 0.0)


#: A softmax's gradient by rows: quotients that nearly cancel.
QUOTIENTS = """var i0 < 16, i1 < 1536, r0 < 128
group {
  tensor t0: f32[16, 1536, 128]
  tensor t1: f32[16, 1536, 128]
  tensor t2: f32[16, 1536]
  tensor t3: f32[16, 1536, 128]
  tensor t4: f32[16, 1536, 128]
  tensor acc0: f32[16, 1536]
  inputs t0, t1, t2, t3
  outputs t4
  segment (i0, i1) {
    reduce acc0 = sum over (r0) of t0[i0, i1, r0] * t1[i0, i1, r0]
    output t4[i0, i1, r0] for (r0) = (t0[i0, i1, r0] / t2[i0, i1] + -(acc0[i0, i1] / t2[i0, i1])) * t3[i0, i1, r0]
  }
}
"""


@needs_opencl
def test_numbers_shared_by_tasks_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random inputs are not drawn and sent for each task.

    That took 16 ms a task, ten times as long as to check a kernel.
    """
    sent: list[int] = []
    device = MeasuringDevice(OPENCL)
    upload = device.device.upload
    monkeypatch.setattr(device.device, "upload", lambda place, array: (sent.append(array.nbytes), upload(place, array)))
    for columns in (1500, 1600):
        problem = TuningTask(group_of("matmul", ((1024, columns), (columns, 8))), {}, OPENCL, MACHINE, "product")
        device.prepare(problem)
        data = device._problems[problem.key]
        for tensor, wanted in random_inputs(problem).items():
            np.testing.assert_array_equal(device.checker.read(data, tensor, data.first[tensor]), wanted)
    assert sorted(sent) == [*(each for each in sorted(sent) if each < 1 << 20), 4 * PERIOD]


def test_right_results_agree_for_any_sum_order() -> None:
    problem = TuningTask(parse_ir(QUOTIENTS), {}, OPENCL, MACHINE)
    t0, t1, t2, t3 = (view(problem, t, array) for t, array in random_inputs(problem).items())
    products = t0 * t1
    # As four lanes sum vectors of four: in turn in each place of a vector, then over the vector, then over the lanes.
    vectors = np.add.accumulate(products.reshape(16, 1536, -1, 4, 4), axis=2)[:, :, -1]
    pairs = np.add.accumulate(vectors, axis=-1)[..., -1].reshape(16, 1536, 2, 2).sum(2)
    sums = [np.add.accumulate(products, axis=-1)[..., -1], products.sum(-1), pairs.sum(-1)]
    found = [(t0 / t2[..., None] - (s / t2)[..., None]) * t3 for s in sums]
    allowed, scale = 2 * group_tolerance(problem.form, "t4"), make_reference(problem).scales["t4"]
    assert all(float(relative_error(other, found[0], scale).max()) <= allowed for other in found[1:])


def test_tensors_of_indices_get_numbers_that_index_something() -> None:
    form = group_of("relu", ((4,),))
    assert index_ranges(form) == {}


@needs_opencl
def test_right_kernels_pass_and_are_timed(bench: DeviceBench) -> None:
    problem = problem_of(32)
    for number in range(2):
        made = build_candidate(problem, number)
        assert bench.check(problem, made).outcome == "ok"
        assert len(bench.sample(problem, made, 3).samples) == 3


@needs_opencl
def test_launch_of_several_groups_is_checked_and_timed(bench: DeviceBench) -> None:
    forms = [group_of(op, shapes, attributes) for op, shapes, attributes in CASES.values()]
    problem = TuningTask(join_forms([*forms, forms[-1]]), {}, OPENCL, MACHINE, "groups side by side")
    schedules = [simple_schedule(form, OPENCL) for form in forms]
    members = [(form, schedule, {}) for form, schedule in zip(forms, schedules, strict=True) if schedule]
    made = Factory().bundle(problem, [*members, members[-1]])
    assert made.outcome == "ok"
    assert bench.check(problem, made).outcome == "ok"
    assert len(bench.sample(problem, made, 3).samples) == 3
    assert made.kernel is not None
    wrong = evolve(made.kernel, source=made.kernel.source.replace("const int which =", "const int which = 0 *"))
    assert bench.check(problem, BuildResult(wrong)).outcome == "wrong"


@needs_opencl
@pytest.mark.parametrize(("error", "outcome"), [(RoutineError, "refused"), (BackendError, "failed")])
def test_missing_library_routine_leaves_the_device_sound(
    error: type[BackendError], outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure costs a GPU's process; a refusal launched nothing."""

    def load(*given: object) -> Any:
        raise error("no strict fp32 plan\nfor this group")

    device, problem = MeasuringDevice(OPENCL), problem_of(32)
    monkeypatch.setattr(device, "_load", load)
    kernel = KernelFunction("r", "library", "{}", (1, 1, 1), (1, 1, 1), ())
    assert device.check(problem.key, kernel, None, problem) == Verdict(outcome, "no strict fp32 plan")


@needs_opencl
@pytest.mark.parametrize("repeats", [1, 2, 3, 5, 2 * NUM_PLACEMENTS + 1])
def test_small_task_is_timed_at_several_positions(repeats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of data decide comparisons of kernels of 3.5 us.

    It matters more than their difference.
    """
    cold = evolve(OPENCL, warm_caches=False)
    device, problem = MeasuringDevice(OPENCL), evolve(problem_of(32), target=cold)
    kernel = build_candidate(problem).kernel
    assert kernel is not None
    assert device.check(problem.key, kernel, None, problem) == Verdict("ok")
    data = device._problems[problem.key]
    loaded, form = data.kernels[kernel.name], problem.form
    ran: list[tuple[int, int]] = []
    time_of = device.device.time

    def fake_time(run: Any, **given: Any) -> Any:
        (place,) = (place for place, launch in loaded.launches.items() if launch is run)
        ran.append((place, given["repeats"]))
        return time_of(run, **{**given, "cold": False, "warm": ()})

    monkeypatch.setattr(device.device, "time", fake_time)
    for _ in range(NUM_PLACEMENTS):
        samples = device.sample(problem.key, kernel.name, repeats)
        assert samples is not None and len(samples) == repeats
    assert [place for place, _ in ran] == [
        n % NUM_PLACEMENTS for n in range(NUM_PLACEMENTS * min(repeats, NUM_PLACEMENTS))
    ]
    assert sum(runs for _, runs in ran) == NUM_PLACEMENTS * repeats
    for tensor in (*form.inputs, *form.outputs):  # the kernel wrote the same everywhere, as inputs are the same
        found = [device.checker.read(data, tensor, places[tensor]) for places in data.places]
        assert all(np.array_equal(each, found[0]) for each in found)
    whole = sorted((p.offset, p.offset + span(problem, t)) for places in data.places[1:] for t, p in places.items())
    assert all(end <= start for (_, end), (start, _) in pairwise(whole)), "places overlap"
    assert whole[-1][1] <= next(iter(data.places[1].values())).buffer.nbytes
    monkeypatch.setattr("cuts.search.measurement.task_data.MAX_PLACED_BYTES", 0)
    other = evolve(problem_of(48), target=cold)
    device.prepare(other)
    assert len(device._problems[other.key].places) == 1, "there is much of it"


@needs_opencl
@pytest.mark.parametrize("dtype", DType)
def test_small_data_is_equal_at_all_positions(dtype: DType) -> None:
    device, cold = MeasuringDevice(OPENCL), evolve(OPENCL, warm_caches=False)
    for shape in ((1, 1), (3, 5), (127, 131)):
        form = group_of("transpose", (shape,), {"perm": (1, 0)}, dtype)
        problem = TuningTask(form, {}, cold, MACHINE)
        device.prepare(problem)
        data = device._problems[problem.key]
        assert len(data.places) == NUM_PLACEMENTS
        for places in data.places[1:]:
            assert all(place.offset % PLACEMENT_ALIGNMENT == 0 for place in places.values())
            for tensor in form.inputs:
                found, wanted = (device.checker.read(data, tensor, each[tensor]) for each in (places, data.first))
                assert found.tobytes() == wanted.tobytes()


@needs_opencl
def test_the_kernel_used_least_recently_is_unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.search.measurement.device.MAX_LOADED_KERNELS", 2)
    device, problem = MeasuringDevice(OPENCL), problem_of(32)
    device.prepare(problem)
    kernels = [make_kernel(problem, c.schedule) for c in choose(problem.form, OPENCL, count=3)]
    for kernel in kernels[:2]:
        assert device.check(problem.key, kernel, None).outcome == "ok"
    assert device.sample(problem.key, kernels[0].name, 1)
    assert device.check(problem.key, kernels[2], None).outcome == "ok"
    assert [device.sample(problem.key, kernel.name, 1) is not None for kernel in kernels] == [True, False, True]


@needs_opencl
def test_large_groups_are_compared_with_sampled_kernel(bench: DeviceBench) -> None:
    problem = problem_of(192)
    assert evaluations(problem.form) > MAX_WHOLE_EVALUATIONS
    assert bench.check(problem, build_candidate(problem)).outcome == "ok"
    # One element of 36,864 is wrong: the sample most likely misses it, the comparison with the other kernel does not.
    assert bench.check(problem, spoil(build_candidate(problem, 1), "", last_writes(36863))).outcome == "wrong"


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.BF16])
def test_device_comparison_misses_no_element(dtype: DType) -> None:
    device = open_device(OPENCL)
    comparer = Comparer(device, OPENCL, dtype)
    array = np.random.default_rng(0).standard_normal(2 * BLOCK).astype(np.float32).astype(dtype.numpy)
    places = [Pointer(device.allocate(array.nbytes)) for _ in range(2)]
    device.upload(places[1], array)
    for place in (3, BLOCK, 2 * BLOCK - 1):
        array[place] = float(array[place]) + 1.0
    device.upload(places[0], array)
    assert comparer.usable
    assert comparer.differences(places[0], places[1], 2 * BLOCK, 1e-2, 1e-2) == 3
    assert comparer.differences(places[0], places[1], BLOCK, 1e-2, 1e-2) == 1
    assert comparer.differences(places[0], places[1], 2 * BLOCK, 1e-2, 10.0) == 0


@needs_opencl
def test_other_precisions_are_compared_on_the_host() -> None:
    device = open_device(OPENCL)
    assert not Comparer(device, OPENCL, DType.F64).usable
    assert not Comparer(device, OPENCL, DType.I32).usable


@needs_opencl
def test_tail_of_large_output_is_compared_on_host(bench: DeviceBench) -> None:
    problem = TuningTask(group_of("relu", ((1100, 1000),)), {}, OPENCL, MACHINE)
    assert bench.check(problem, build_candidate(problem)).outcome == "ok"
    assert bench.check(problem, build_candidate(problem, 1)).outcome == "ok"
    for index in (5, 1_099_999):
        assert bench.check(problem, spoil(build_candidate(problem, 1), "", last_writes(index))).outcome == "wrong"


@needs_opencl
def test_a_kernel_that_writes_nothing_is_wrong(bench: DeviceBench) -> None:
    problem = problem_of(24)
    verdict = bench.check(problem, spoil(build_candidate(problem), "if (get_global_id(0) >= 0) return;"))
    assert (verdict.outcome, "expected" in verdict.message) == ("wrong", True)


@needs_opencl
def test_a_kernel_that_does_not_compile_has_failed(bench: DeviceBench) -> None:
    problem = problem_of(24)
    verdict = bench.check(problem, spoil(build_candidate(problem), "this is no C;"))
    assert (verdict.outcome, "does not compile" in verdict.message) == ("failed", True)


@needs_opencl
def test_crash_costs_one_candidate_and_reloads_others(bench: DeviceBench) -> None:
    problem = problem_of(40)
    right = build_candidate(problem)
    assert bench.check(problem, right).outcome == "ok"
    verdict = bench.check(problem, spoil(build_candidate(problem, 1), "*(volatile int *)8 = 1;"))
    assert (verdict.outcome, "signal SIG" in verdict.message) == ("failed", True)
    assert len(bench.sample(problem, right, 2).samples) == 2


@needs_opencl
def test_task_too_large_for_the_device_fails_alone(bench: DeviceBench) -> None:
    small, large = problem_of(24), problem_of(24)
    assert bench.check(small, build_candidate(small)).outcome == "ok"
    (name, *_) = large.form.inputs
    huge = TuningTask(large.form, {name: Storage("b", 0, (1 << 44, 1))}, OPENCL, MACHINE)
    assert bench.check(huge, build_candidate(small)).outcome == "failed"
    assert bench.check(small, build_candidate(small)).outcome == "ok"


def test_without_a_device_the_error_says_so() -> None:
    bench = DeviceBench(OPENCL, service="cuts.tests.search.services:Broken")
    with pytest.raises(BackendError, match="no device of this kind"):
        bench.check(problem_of(24), build_candidate(problem_of(24)))
    bench.close()


@needs_opencl
def test_first_candidate_that_ends_the_process_fails_alone() -> None:
    bench, problem = DeviceBench(OPENCL, limit=60.0), problem_of(24)
    assert bench.check(problem, spoil(build_candidate(problem, 1), "*(volatile int *)8 = 1;")).outcome == "failed"
    assert bench.check(problem, build_candidate(problem)).outcome == "ok"
    bench.close()


@needs_opencl
def test_candidate_is_checked_beside_other_requests() -> None:
    bench, one, other = DeviceBench(OPENCL, limit=60.0), problem_of(24), problem_of(32)
    assert bench.check(one, build_candidate(one)).outcome == "ok"
    bench.begin(other, build_candidate(other))
    assert len(bench.sample(one, build_candidate(one), 2).samples) == 2
    assert bench.check(one, build_candidate(one, 1)).outcome == "ok"
    assert bench.take_finished(0.0) == [(other.key, DeviceAnswer(Verdict("ok")))]
    assert bench.take_finished(0.0) == []
    bench.begin(other, spoil(build_candidate(other, 1), "*(volatile int *)8 = 1;"))
    while not (arrived := bench.take_finished(0.1)):
        pass
    ((key, measured),) = arrived
    verdict = measured.verdict
    assert key == other.key
    assert (verdict.outcome, "signal SIG" in verdict.message) == ("failed", True)
    assert bench.check(one, build_candidate(one)).outcome == "ok"
    bench.close()


@needs_opencl
def test_candidates_are_timed_in_turns_with_other_work() -> None:
    """A hopeless candidate runs once at most, an unloaded one never."""
    bench, problem = DeviceBench(OPENCL, limit=60.0), problem_of(24)
    first, second = build_candidate(problem), build_candidate(problem, 1)
    assert first.kernel is not None
    assert second.kernel is not None
    names = first.kernel.name, second.kernel.name

    def wait_for_answer() -> DeviceAnswer:
        while not (arrived := bench.take_finished(0.1)):
            pass
        ((key, measured),) = arrived
        assert key == problem.key
        assert measured.verdict == Verdict("ok")
        return measured

    bench.begin(problem, first, TimingTurns(names[:1], 3))
    assert [len(samples or ()) for samples in wait_for_answer().samples] == [3]
    bench.begin(problem, second, TimingTurns((names[1], names[0], names[1]), 2))
    assert [len(samples or ()) for samples in wait_for_answer().samples] == [2, 2, 2]
    bench.begin(problem, second, TimingTurns((names[1], names[0], names[1]), 2, 1e-12))
    assert [len(samples or ()) for samples in wait_for_answer().samples] == [2]
    bench.begin(problem, None, TimingTurns((*names, "unknown"), 2))
    assert [samples and len(samples) for samples in wait_for_answer().samples] == [2, 2, None]
    bench._child.kill()
    bench.begin(problem, None, TimingTurns(names, 2))
    loaded = [samples is not None for samples in wait_for_answer().samples]
    assert loaded == [True, False], "a process that is new has loaded what others are held against"
    bench.close()


@needs_opencl
def test_a_hang_is_stopped_by_the_watchdog() -> None:
    bench = DeviceBench(OPENCL, limit=1.5)
    problem = problem_of(40)
    right = build_candidate(problem)
    assert bench.check(problem, right).outcome == "ok"
    start = time.monotonic()
    hanging = spoil(build_candidate(problem, 1), "volatile int forever = 1; while (forever) { }")
    assert bench.check(problem, hanging).outcome == "timeout"
    assert time.monotonic() - start < 6
    assert bench.check(problem, right).outcome == "ok"
    bench.close()


@needs_opencl
def test_parts_of_a_larger_buffer_are_checked_there(bench: DeviceBench) -> None:
    form = group_of("relu", ((6, 8),))
    (output,) = form.outputs
    problem = TuningTask(form, {output: Storage("b", 4, (20, 1))}, OPENCL, MACHINE)
    assert bench.check(problem, build_candidate(problem)).outcome == "ok"
    dense = TuningTask(form, {}, OPENCL, MACHINE)
    assert bench.check(problem, build_candidate(dense)).outcome == "wrong"


def test_slow_job_of_parallel_workers_costs_itself() -> None:
    workers = Workers(2, "cuts.tests.search.services:Slow")
    for name, seconds, limit in (
        ("a", 0.0, 60.0),
        ("b", 300.0, 2.0),
        ("c", 0.0, 60.0),
    ):  # a busy machine starts workers slowly
        workers.submit(Job(name, "nap", (seconds,), limit=limit))
    workers.submit(Job("d", "crash", ()))
    done = {}
    while workers.load:
        done |= {d.job.owner: d for d in workers.collect(1.0)}
    workers.close()
    assert {n: (d.value, d.hung) for n, d in done.items()} == {
        "a": (0.0, False),
        "b": (None, True),
        "c": (0.0, False),
        "d": (None, False),
    }
    assert "exit code 3" in done["d"].error


def test_dropped_running_job_is_reused_when_requested_again() -> None:
    workers, problem = Workers(1), problem_of(8)
    done = []
    for owner in ("dropped", "under way", "done"):
        if owner == "done":  # its end is not awaited
            while any(slot.job is not None for slot in workers._slots):
                workers.collect(0.1)
        workers.submit(Job(owner, "simple", (problem,)))
        started = workers._slots[0].begun
        done += [(owner, started)]
        workers.drop()
    workers.submit(Job("last", "simple", (problem,)))
    found = workers.collect(60.0)
    workers.close()
    assert [each.job.owner for each in found] == ["last"]
    assert found[0].value is not None
    assert len({started for _, started in done}) == 1, "the worker was asked once"


def test_service_that_cannot_start_answers_with_the_reason() -> None:
    child = Child("cuts.tests.search.services:Broken")
    for _ in range(2):
        with pytest.raises(BackendError, match="no device of this kind"):
            child.call(10.0, "nap", 0.0)
    child.close()


def test_keyboard_interrupt_does_not_reach_a_child(
    capfd: pytest.CaptureFixture[str],
) -> None:
    child = Child("cuts.tests.search.services:Slow")
    child.start()
    assert child._process is not None
    group = os.getpgid(child._process.pid)
    assert group != os.getpgid(0)
    assert child.ready(60)
    child.close()
    assert capfd.readouterr().err == ""


def test_a_child_that_still_starts_is_not_awaited() -> None:
    child = Child("cuts.tests.search.services:Unready")
    child.start()
    begin = time.monotonic()
    child.close()
    assert time.monotonic() - begin < 1.0
    assert not child.alive


def test_a_lost_child_is_started_again() -> None:
    child = Child("cuts.tests.search.services:Slow")
    with pytest.raises(ChildLost, match="exit code 3"):
        child.call(10.0, "crash")
    assert child.call(10.0, "nap", 0.0) == 0.0
    assert child.starts == 2
    child.close()


def test_a_factory_refuses_what_cannot_be_lowered() -> None:
    problem = problem_of(24)
    other = choose(group_of("relu", ((5, 5),)), OPENCL)[0].schedule
    with pytest.raises((AssertionError, BackendError, IndexError)):
        Factory().build(problem, other)


@needs_opencl
def test_tuner_with_processes_beats_or_keeps_model_choice(tmp_path: Path) -> None:
    executor = SearchExecutor(Database(tmp_path / "t"), lambda: Workers(1), lambda: DeviceBench(OPENCL))
    (choice,) = Tuner(executor).run([problem_of(64)], Settings(first=4, batch=2, most=6, patience=0))
    executor.close()
    assert choice.seconds is not None
    assert choice.first is not None
    assert choice.seconds <= 1.05 * choice.first


@needs_opencl
def test_the_command_line_tunes_once_and_explains(cuts: Cuts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The unfused plan's speed does not matter.

    An audit leaves nothing to be searched for by the next command.
    """
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("cuts.compile.selection.cached_decisions.MAX_SUM_RATIO", 100.0)
    arguments = ("graph.json", "-o", "p", "--json")
    assert cuts("tune", *arguments, "--frozen").code == 2
    first, again, frozen = (
        cuts(*c)
        for c in (
            ("tune", *arguments, "--trials", "4", "--audit", "3"),
            ("tune", *arguments),
            ("compile", "graph.json", "-o", "p", "--json", "--frozen"),
        )
    )
    assert first.json["tuning"]["timed"] > 0
    assert first.json["tuning"]["audit"][0]["timed"] > 0
    assert (again.json["tuning"]["compiled"], frozen.json["tuning"]["timed"]) == (0, 0)
    group = again.json["groups"][0]
    assert (group["origin"], group["measured"]) == ("database", first.json["groups"][0]["measured"])
    third = cuts("tune", *arguments)
    assert (third.json["tuning"]["cached"], third.json["groups"]) == (True, again.json["groups"])
    assert cuts("verify", "p").code == 0
    explained = cuts("cache", "explain", group["tuning"][:16])
    assert "the key is the SHA-256 of" in explained.out
    assert cuts("cache", "explain", "nonsense").code == 2
    assert cuts("cache", "info", "--json").json["tuning"]["finished"] >= 1
    assert cuts("cache", "clear", "--json").json["trials"] > 0
    assert json.loads((tmp_path / "p" / "plan.json").read_text())


@needs_opencl
def test_exhausted_budget_keeps_the_plan_and_returns_six(
    cuts: Cuts,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    result = cuts("tune", "graph.json", "-o", "p", "--budget", "0.01")
    assert result.code == 6
    assert "the budget of 0.01 s ended the search" in result.err
    assert cuts("verify", "p").code == 0


def heeds_interrupts() -> None:
    """Restore interrupts for a background process.

    A shell lets it ignore interrupts, and its children would too.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@needs_opencl
def test_ctrl_c_keeps_the_best_found_so_far(cuts: Cuts, tmp_path: Path) -> None:  # noqa: F811
    environment = os.environ | {"CUTS_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "cuts.compile", "tune", "graph.json", "-o", "p", "--trials", "400"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    )
    database = tmp_path / "cache" / "tuning.sqlite3"
    start = time.monotonic()
    while time.monotonic() < start + 60 and not (
        database.exists() and int(str(summary_of(Database(database))["trials"])) > 0
    ):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "the plan is the best found so far" in process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert cuts("verify", "p").code == 0


@given(st.permutations(range(3)), st.integers(0, 3))
def test_places_of_a_sample_are_found_in_memory(order: Sequence[int], gap: int) -> None:
    """Values read from memory equal those of a view of it."""
    i, j, k = (Var(name, extent) for name, extent in zip("ijk", (3, 4, 5), strict=True))
    types = {t: TensorType(DType.F32, (3, 4, 5)) for t in "xy"}
    at = tuple(as_index(v) for v in (i, j, k))
    form = FusedGroup((Segment((i, j, k), (), (Output("y", at, Read("x", at)),)),), types, ("x",), ("y",))
    strides, step = [0, 0, 0], 1 + gap
    for dim in order:
        strides[dim], step = step, step * (3, 4, 5)[dim]
    problem = TuningTask(form, {"y": Storage("y", 0, tuple(strides))}, OPENCL, MACHINE, "copy")
    places = [p.ravel() for p in np.meshgrid(*map(np.arange, (3, 4, 5)), indexing="ij")]
    memory = np.arange(elements(problem, "y"), dtype=np.float32)
    assert (view(problem, "y", memory)[tuple(places)] == memory[addresses(problem, "y", places)]).all()
