"""Memory plan: live buffers never overlap, and sharing never costs memory."""

from __future__ import annotations

from cuts.runtime.memory import ALIGNMENT, Lifetime, Placement, align_bytes, place_buffers
from hypothesis import given
from hypothesis import strategies as st


@st.composite
def buffers(draw: st.DrawFn) -> tuple[dict[int, int], dict[int, Lifetime]]:
    """Sizes and lifetimes of up to 40 buffers over 12 steps."""
    count = draw(st.integers(0, 40))
    sizes = {key: draw(st.integers(0, 5000)) for key in range(count)}
    lifetimes = {}
    for key in range(count):
        first = draw(st.integers(0, 12))
        lifetimes[key] = Lifetime(first, draw(st.integers(first, 12)))
    return sizes, lifetimes


@given(buffers())
def test_no_two_live_buffers_overlap(case: tuple[dict[int, int], dict[int, Lifetime]]) -> None:
    sizes, lifetimes = case
    places, _ = place_buffers(sizes, lifetimes)
    for a in places:
        for b in places:
            if a < b and lifetimes[a].overlaps(lifetimes[b]):
                assert places[a].end <= places[b].offset or places[b].end <= places[a].offset


@given(buffers())
def test_arena_holds_every_buffer_aligned(case: tuple[dict[int, int], dict[int, Lifetime]]) -> None:
    sizes, lifetimes = case
    places, arena = place_buffers(sizes, lifetimes)
    assert set(places) == set(sizes)
    for key, place in places.items():
        assert place.nbytes == sizes[key]
        assert place.offset % ALIGNMENT == 0
        assert place.offset >= 0
        assert place.end <= arena


@given(buffers())
def test_arena_is_between_busiest_step_and_sum(case: tuple[dict[int, int], dict[int, Lifetime]]) -> None:
    sizes, lifetimes = case
    _, arena = place_buffers(sizes, lifetimes)
    busiest = max(
        (sum(align_bytes(sizes[k]) for k in sizes if lifetimes[k].overlaps(Lifetime(s, s))) for s in range(13)),
        default=0,
    )
    assert busiest <= arena <= sum(map(align_bytes, sizes.values()))


def test_chain_of_equal_buffers_needs_two() -> None:
    sizes = dict.fromkeys("abcdef", 1000)
    lifetimes = {key: Lifetime(step, step + 1) for step, key in enumerate(sizes)}
    assert place_buffers(sizes, lifetimes)[1] == 2 * align_bytes(1000)


def test_best_fit_takes_the_tightest_gap() -> None:
    # Large buffers come first; when "tiny" is placed, the gap that "gone" left is tighter than the end of the arena.
    sizes = {"gone": 512, "wall": 1024, "tiny": 256}
    lifetimes = {"gone": Lifetime(0, 1), "wall": Lifetime(0, 9), "tiny": Lifetime(5, 6)}
    places, arena = place_buffers(sizes, lifetimes)
    assert places["tiny"] == Placement(1024, 256)
    assert arena == 1536
