"""Turns of warpgroups: the check of kernels, and the kernels of chains."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.ir import Kernel, Loop, TurnPass, TurnWait, Var
from cuts.ir.kernel import Item
from cuts.ir.verify.kernel import check_turns
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st


def kernel_of(items: list[Item], groups: int) -> Kernel:
    """Return a kernel of these items."""
    return Kernel(1, 128 * groups, (), (), tuple(items), (), (), {})


def circle(groups: int, body: list[Item]) -> list[Item]:
    """Return the items of warpgroups that take turns in a loop."""
    loop = Loop(Var("n", 9), tuple(body))
    return [TurnPass(groups - 1, groups), TurnWait(), loop, TurnPass(0, groups)]


@given(st.integers(2, 5))
@settings(max_examples=examples(4, 16))
def test_warpgroups_in_a_circle_all_end(groups: int) -> None:
    whole = circle(groups, [TurnPass(0, groups), TurnWait()])
    assert list(check_turns(kernel_of(whole, groups))) == []
    for missing in (0, 1, 3):
        assert list(check_turns(kernel_of([*whole[:missing], *whole[missing + 1 :]], groups)))


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ([TurnWait(), TurnPass(0, 2)], "waits for ever"),
        ([TurnPass(0, 2)], "two turns at once"),
        ([TurnPass(0, 2), TurnPass(0, 2), TurnWait(), TurnWait()], "two turns at once"),
        ([TurnWait()], "waits for ever"),
    ],
)
def test_faulty_turns_are_named(body: list[Item], fault: str) -> None:
    assert fault in str(next(check_turns(kernel_of(circle(2, body), 2))))


def test_teams_take_one_turn_a_tile() -> None:
    loop = Loop(Var("n", 9), ())
    teams = evolve(kernel_of([TurnWait(), loop, TurnPass(0, 1)], 1), teams=2)
    assert list(check_turns(teams)) == []
    for items in ([TurnPass(0, 1), loop, TurnWait()], [TurnWait(), loop], [loop]):
        assert "expected one that waits" in str(next(check_turns(evolve(teams, items=tuple(items)))))
    assert "2 teams of 2 warpgroups" in str(next(check_turns(evolve(teams, threads=256))))


def test_one_warpgroup_takes_no_turns() -> None:
    found = evolve(kernel_of(circle(2, [TurnPass(0, 2), TurnWait()]), 2), threads=128)
    assert "1 warpgroups take turns" in str(next(check_turns(found)))
