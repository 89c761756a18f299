"""The audit over a made-up device: it finds what pruning lost, and accuses nobody else."""

from __future__ import annotations

from attrs import evolve
from cuts.ir.launch import KernelFunction
from cuts.search.audit import Audit, audit_choices
from cuts.search.settings import Settings

from .fakes import FakeBench, by_threads, problem_of, tuner_of

ONE = Settings(first=1, batch=0, most=1, prove=False)


def audited(bench: FakeBench, settings: Settings, count: int = 30) -> Audit:
    tuner = tuner_of(bench)
    problem = problem_of()
    choices = tuner.run([problem], settings)
    (found,) = audit_choices(tuner, [problem], choices, count, settings)
    return found


def test_a_winner_that_pruning_lost_is_found() -> None:
    found = audited(FakeBench(by_threads), ONE)
    assert found.lost
    assert found.best < found.chosen
    assert (found.timed, found.unsound, found.exhaustive) == (30, 0, False)


def test_equal_points_do_not_accuse_the_choice() -> None:
    assert not audited(FakeBench(lambda kernel: 1e-3), ONE).lost


def test_points_faster_than_their_bound_are_counted() -> None:
    assert audited(FakeBench(lambda kernel: 1e-9), ONE).unsound == 31


def test_noise_that_does_not_last_accuses_nobody() -> None:
    seen: dict[str, int] = {}

    def cost(kernel: KernelFunction) -> float:
        seen[kernel.name] = seen.get(kernel.name, 0) + 1
        return 0.9e-3 if seen[kernel.name] == 1 else 1e-3

    assert not audited(FakeBench(cost), evolve(ONE, runs=1, rounds=6)).lost
