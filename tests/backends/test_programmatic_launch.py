"""Launches that are placed before their predecessor ends: waits and graph edges."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ..needs import needs_c_compiler, needs_toolchain
from .test_arithmetic import machine_code, needs_disassembler
from .test_concurrent_launches import record_launches

GOLDEN = Path(__file__).parent / "golden"
#: Nodes of a graph with programmatic launches at most (`cuda_graph.c`).
MAX_EARLY_NODES = 4096
#: Instructions that read or write memory that other kernels know.
MEMORY = re.compile(r"\b(LDG|STG|LDGSTS|LD|ST|RED|ATOMG?)\b")


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize("file", sorted(GOLDEN.glob("test_kernel-*-cuda.txt")), ids=lambda f: f.stem)
def test_kernels_wait_before_they_touch_memory(file: Path, tmp_path: Path) -> None:
    before, _, rest = machine_code(file.read_text(), tmp_path).partition("ACQBULK")
    assert not MEMORY.search(before) and MEMORY.search(rest) and "PREEXIT" not in rest


def early_edges(*nodes: str, arch: str = "sm_90", old: bool = False) -> set[tuple[str, str]]:
    """The edges of a chain of nodes that hold no launch back."""
    edges = record_launches(nodes, [(n - 1,) if n else () for n in range(len(nodes))], arch, old)
    assert set(edges) == set(pairwise(nodes)), "every edge is there"
    return {pair for pair, is_early in edges.items() if is_early}


@needs_c_compiler()
def test_old_drivers_hold_launches_back() -> None:
    assert early_edges("a_waits", "b_waits", old=True) == set()


@needs_c_compiler()
def test_edges_between_own_kernels_delay_no_launch() -> None:
    assert early_edges("a_waits", "b_waits", "c_waits") == {("a_waits", "b_waits"), ("b_waits", "c_waits")}


@needs_c_compiler()
def test_what_does_not_wait_follows_the_end() -> None:
    assert early_edges("a_waits", "gemm", "b_waits") == {("gemm", "b_waits")}


@needs_c_compiler()
@given(st.lists(st.sampled_from(("waits", "gemm", "copy")), min_size=1, max_size=12))
def test_memory_is_untouched_until_all_predecessors_end(kinds: list[str]) -> None:
    """Law of programmatic launches.

    A read follows the write and an overwrite follows the read, since a node touches nothing until all its predecessors
    end. A node that does not wait touches memory from its beginning; an early edge lets a node begin as soon as its
    predecessor has begun.
    """
    nodes = [f"kernel{number}_waits" if kind == "waits" else f"{kind}{number}" for number, kind in enumerate(kinds)]
    early = early_edges(*nodes)
    began: set[int] = set()  # the nodes whose ends come before the beginning of this one
    for number, node in enumerate(nodes):
        held = number and (nodes[number - 1], node) not in early
        began = set(range(number)) if held else began
        seen = set(range(number)) if node.endswith("_waits") else began
        assert seen == set(range(number)), f"{node} may touch memory before {set(range(number)) - seen} have ended"


@needs_c_compiler()
def test_a_long_recording_is_left_as_it_is() -> None:
    assert len(early_edges(*(f"{n}_waits" for n in range(MAX_EARLY_NODES)))) == MAX_EARLY_NODES - 1
    assert early_edges(*(f"{n}_waits" for n in range(MAX_EARLY_NODES + 1))) == set()


@needs_c_compiler()
def test_older_machines_launch_one_after_another() -> None:
    assert early_edges("a_waits", "b_waits", arch="sm_89") == set()
    assert early_edges("a_waits", "b_waits", arch="sm_90a") == {("a_waits", "b_waits")}
