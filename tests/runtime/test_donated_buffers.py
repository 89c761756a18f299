"""Outputs that become inputs: each is moved before it is overwritten."""

from __future__ import annotations

import numpy as np
from cuts.runtime.donated_buffers import BufferMove, order_moves
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def moves(draw: st.DrawFn) -> list[BufferMove]:
    """Draw moves with disjoint sources and targets.

    Each has up to six of 40 bytes.
    """

    def disjoint_offsets(sizes: list[int]) -> list[int]:
        order, places, end = draw(st.permutations(range(len(sizes)))), [0] * len(sizes), 0
        for n in order:
            places[n] = end + draw(st.integers(0, 3))
            end = places[n] + sizes[n]
        return places

    sizes = draw(st.lists(st.integers(0, 6), max_size=5))
    return [BufferMove(*each) for each in zip(disjoint_offsets(sizes), disjoint_offsets(sizes), sizes, strict=True)]


@given(moves())
def test_moves_in_order_are_moves_all_at_once(wanted: list[BufferMove]) -> None:
    memory = np.arange(60, dtype=np.uint8)
    expected = memory.copy()
    for move in wanted:
        expected[move.target : move.target + move.nbytes] = memory[move.source : move.source + move.nbytes]
    found = order_moves(wanted)
    aside = np.zeros(found.room, np.uint8)
    for move in found.first:
        aside[move.target : move.target + move.nbytes] = memory[move.source : move.source + move.nbytes]
    for move in found.then:
        assert move.aside or not move.overwrites(move), "a copy whose ends overlap"
        source = aside if move.aside else memory
        memory[move.target : move.target + move.nbytes] = source[move.source : move.source + move.nbytes].copy()
    np.testing.assert_array_equal(memory, expected)


def test_nothing_is_set_aside_where_an_order_does() -> None:
    chain = [BufferMove(8, 0, 4), BufferMove(16, 8, 4), BufferMove(24, 16, 4)]
    found = order_moves(chain[::-1])
    assert (found.room, found.then) == (0, tuple(chain))
