"""Choices: legal, deterministic, shared by equal groups, explained; pruning keeps its promises."""

from __future__ import annotations

from collections import Counter

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.targets import descriptions
from cuts.ir.errors import PassError, UsageError
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection import enumerate as points
from cuts.passes.schedule.selection import hill_climbing as climb
from cuts.passes.schedule.selection.choose import choose, choose_soon, structural_key
from cuts.passes.schedule.selection.enumerate import batches, evaluate
from cuts.passes.schedule.selection.prune import score
from cuts.passes.schedule.space import make_space

from .groups import ALL, conv, depthwise, matmul, pointwise, softmax

H200 = find_target("cuda:h200")
CPU = find_target("opencl")
GPUS = [item.target for item in descriptions() if item.target.dialect == "cuda"]


@pytest.mark.parametrize("model", ["bound", "paper"])
@pytest.mark.parametrize("target", [H200, CPU], ids=lambda t: t.name)
@pytest.mark.parametrize("name", sorted(ALL))
def test_chosen_schedules_are_legal_and_in_order(name, target, model):
    found = choose(ALL[name], target, model, count=4)
    assert found
    assert [c.score for c in found] == sorted(c.score for c in found)
    for candidate in found:
        assert check_schedule(ALL[name], candidate.schedule, target) == []


def test_choice_is_close_to_the_spaces_best():
    for group in (matmul(64, 96, 48), depthwise(1, 32, 14), softmax(64, 256)):
        space = make_space(group, H200, coarse=True)
        best = min(score(batch, space, "bound").min() for batch in batches(space))
        assert choose(group, H200)[0].score <= best * 1.0001


@pytest.mark.parametrize("group", [matmul(64, 96, 48), softmax(64, 256), pointwise(64, 64)])
def test_points_of_any_integer_length_are_equal(group, monkeypatch):
    short = climb.best_points(group, H200, "bound", 8)
    monkeypatch.setattr(climb, "MAX_INT64_POINTS", 0)
    assert climb.best_points(group, H200, "bound", 8) == short


def test_choice_considers_no_more_points(monkeypatch):
    counted = Counter()

    def counting_evaluate(*given):
        batch = evaluate(*given)
        counted.update(batches=1, points=batch.size)
        return batch

    monkeypatch.setattr(climb, "evaluate", counting_evaluate)
    monkeypatch.setattr(points, "evaluate", counting_evaluate)
    climb.best_points(matmul(256, 256, 64), H200, "bound", 1)
    assert not counted - Counter(batches=19, points=39_936)  # on 22 November 2026


@pytest.mark.parametrize("name", sorted(ALL))
def test_choice_in_no_time_is_near_best(name):
    assert choose_soon(ALL[name], H200).score <= 1.5 * choose(ALL[name], H200)[0].score


def test_equal_groups_are_searched_once():
    first, second = conv(1, 16, 32, 14), conv(1, 16, 32, 14)
    assert structural_key(first) == structural_key(second)
    assert structural_key(first) != structural_key(conv(1, 16, 32, 15))
    assert choose(first, H200)[0].schedule == choose(second, H200)[0].schedule


def test_cpu_work_groups_stay_small_and_unstaged():
    for group in (matmul(512, 512, 512), conv(1, 64, 64, 28), softmax(128, 256)):
        schedule = choose(group, CPU)[0].schedule
        assert schedule.threads <= 128
        assert not any(r.staging for s in schedule.segments for r in s.reductions)


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_gpu_products_are_staged_and_fill_the_machine(target):
    """An SM may have half as many f32 lanes as issue slots."""
    chosen = choose(matmul(2048, 2048, 512), target)[0]
    assert len(chosen.schedule.segments[0].reductions[0].staging) == 2
    assert chosen.schedule.blocks >= 0.9 * target.NUM_SM
    assert chosen.schedule.threads >= 64


@pytest.mark.parametrize("mode", ["tf32", "fp32x3"])
def test_first_instruction_points_have_several_block_sizes(mode):
    """Warps of a block may lie in many ways.

    The cost model separates these by less than its error.
    """
    group = matmul(1024, 256, 256)
    (segment,) = group.segments
    group = evolve(group, segments=(evolve(segment, reductions=(evolve(segment.reductions[0], math=mode),)),))
    for count, least in ((6, 3), (12, 4)):
        found = [c.schedule.segments[0] for c in choose(group, H200, count=count)]
        assert all(segment.reductions[0].mma for segment in found)
        assert len({tuple(d.block for d in segment.dims) for segment in found}) >= least


def test_machine_that_is_too_small_is_an_error():
    tiny = evolve(H200, max_registers=8)
    with pytest.raises(PassError, match="writes y fits target"):
        choose(matmul(8, 8, 8), tiny)


def test_an_unknown_model_is_an_error():
    space = make_space(matmul(8, 8, 8), H200, coarse=True)
    with pytest.raises(UsageError, match="models are: bound, paper"):
        score(next(iter(batches(space))), space, "guess")
