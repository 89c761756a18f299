"""Choices: legal, deterministic, shared by equal groups, explained; pruning keeps its promises."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.targets import descriptions
from cuts.ir import Pruning
from cuts.ir.errors import PassError, UsageError
from cuts.passes.model.lower_bound import least_seconds, lower_bound
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.passes.schedule.selection import enumerate as points
from cuts.passes.schedule.selection import hill_climbing as climb
from cuts.passes.schedule.selection.choose import assess, choose, choose_soon, explain, structural_key
from cuts.passes.schedule.selection.enumerate import batches, evaluate, to_schedule
from cuts.passes.schedule.selection.known_scores import KnownScores
from cuts.passes.schedule.selection.prune import is_pruned, prune, pul_values
from cuts.passes.schedule.space import make_space

from .groups import ALL, conv, depthwise, matmul, pointwise, softmax

H200 = find_target("cuda:h200")
CPU = find_target("opencl")
GPUS = [item.target for item in descriptions() if item.target.dialect == "cuda"]


@pytest.mark.parametrize("pruning", [Pruning(), Pruning("pul"), Pruning("pul-printed", 10)], ids=lambda p: p.rule)
@pytest.mark.parametrize("target", [H200, CPU], ids=lambda t: t.name)
@pytest.mark.parametrize("name", sorted(ALL))
def test_chosen_schedules_are_legal_and_in_order(name, target, pruning):
    found = choose(ALL[name], target, pruning, count=4)
    assert found
    assert [c.score for c in found] == sorted(c.score for c in found)
    for candidate in found:
        assert check_schedule(ALL[name], candidate.schedule, target) == []


def test_choice_is_close_to_the_spaces_best():
    for group in (matmul(64, 96, 48), depthwise(1, 32, 14), softmax(64, 256)):
        space = make_space(group, H200, coarse=True)
        everything = prune(space, most=1)
        assert choose(group, H200)[0].score <= everything.scores[0] * 1.0001


@pytest.mark.parametrize("group", [matmul(64, 96, 48), softmax(64, 256), pointwise(64, 64)])
def test_points_of_any_integer_length_are_equal(group, monkeypatch):
    short = climb.best_points(group, H200, Pruning(), 8)
    monkeypatch.setattr(climb, "MAX_INT64_POINTS", 0)
    assert climb.best_points(group, H200, Pruning(), 8) == short


def test_choice_considers_no_more_points(monkeypatch):
    counted = Counter()

    def counting_evaluate(*given):
        batch = evaluate(*given)
        counted.update(batches=1, points=batch.size)
        return batch

    monkeypatch.setattr(climb, "evaluate", counting_evaluate)
    monkeypatch.setattr(points, "evaluate", counting_evaluate)
    climb.best_points(matmul(256, 256, 64), H200, Pruning(), 1)
    assert not counted - Counter(batches=15, points=40_670)  # on 30 November 2026


def test_known_scores_are_not_computed_again(monkeypatch):
    group, known, counted = matmul(64, 96, 48), KnownScores(), Counter()
    climb.best_points(group, H200, Pruning(), 64, known)

    def counting_evaluate(*given):
        counted.update(batches=1)
        return evaluate(*given)

    monkeypatch.setattr(climb, "evaluate", counting_evaluate)
    monkeypatch.setattr(points, "evaluate", counting_evaluate)
    again = climb.best_points(group, H200, Pruning(), 8, known)
    seldom = counted["batches"]
    assert again == climb.best_points(group, H200, Pruning(), 8)
    assert 3 * seldom < counted["batches"] - seldom
    assert climb.best_points(group, H200, Pruning(), 100, known) == climb.best_points(group, H200, Pruning(), 100)


@pytest.mark.parametrize("target", GPUS, ids=lambda t: t.name)
def test_no_schedule_undercuts_the_least_seconds(target):
    for group in ALL.values():
        assert least_seconds(group, target) <= choose(group, target)[0].bound * (1 + 1e-9)


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
    assert chosen.schedule.blocks >= 0.85 * target.NUM_SM  # 128 equal tiles, or 256 in two waves, on 148 SMs
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


def test_explain_tells_the_idle_wave():
    group = pointwise(133 * 1024)
    space = make_space(group, H200)
    for point in range(space.size):
        schedule = to_schedule(space, point)
        if schedule.blocks == 133 and not check_schedule(group, schedule, H200):
            text = explain(assess(group, schedule, H200), H200)
            assert "133 blocks on 132 SMs: 50% of the SM time idle, the last of 2 rounds is 1 blocks" in text
            return
    raise AssertionError("no point with 133 blocks")


def test_machine_that_is_too_small_is_an_error():
    tiny = evolve(H200, max_registers=8)
    with pytest.raises(PassError, match="writes y fits target"):
        choose(matmul(8, 8, 8), tiny)


def test_a_wrong_pruning_is_an_error():
    with pytest.raises(UsageError, match="rules are: bound, pul, pul-printed, none"):
        Pruning("guess")
    with pytest.raises(UsageError, match="at most 100 %, found 120 %"):
        Pruning("pul", 120)


@pytest.mark.parametrize("rule", ["pul", "pul-printed"])
def test_pul_keeps_the_top_percentage(rule):
    group = softmax(64, 256)
    space = make_space(group, H200)
    values = np.concatenate([pul_values(b, space, rule == "pul-printed")[b.legal] for b in batches(space)])
    for top in (1.0, 5.0, 100.0):
        found = prune(space, Pruning(rule, top))
        least = np.sort(values)[::-1][int(np.ceil(values.size * top / 100)) - 1]
        assert found.points.size == int((values >= least).sum())
        assert np.all(np.diff(found.scores) >= 0)
        assert not is_pruned(found.scores).any()


def test_pul_changes_the_choice():
    kept = choose(matmul(256, 256, 256), H200, Pruning("pul", 1), count=8)
    assert all(not is_pruned(candidate.score) for candidate in kept)
    assert kept[0].score >= choose(matmul(256, 256, 256), H200)[0].score


def test_bound_discards_only_points_slower_than_best():
    space = make_space(matmul(256, 256, 256), H200, coarse=True)
    best = 5e-6
    found = prune(space, best=best)
    assert found.discarded > 0
    assert found.points.size == found.legal - found.discarded
    kept = set(found.points.tolist())
    for batch in batches(space):
        times, legal = batch.flat(lower_bound(batch.features, space.target).time), batch.legal
        inside = np.arange(batch.start, batch.start + batch.size)
        assert {int(p) for p in inside[legal & (times <= best)]} <= kept
