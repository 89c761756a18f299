"""Split keys.

Parts of a chain's columns and their combination compute the chain, for any mask.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.graph import Graph
from cuts.ir.segment import FusedGroup
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.segment import verify_group
from cuts.passes.fusion.interpret import interpret
from cuts.passes.geometry import register_chain
from cuts.passes.split.split_chain import chain_candidates, split_chain

from ..needs import needs_opencl
from .cases import arrays
from .test_attention_chains import GPU, attention, group_of
from .test_register_chains import TARGETS, chain_points, compute, halves

MASK = TensorType(DType.BOOL, (2, 1, 1, 64))
CASES: dict[str, Graph] = {
    "heads in groups": attention((2, 8, 2, 1, 64, 16, 32)),
    "one query of each head": attention((2, 3, 3, 1, 64, 16, 32)),
    "several queries": attention((2, 4, 2, 4, 64, 16, 16)),
    "parts beyond the mask": attention((1, 4, 4, 4, 64, 16, 16), causal=True, offset=20),
    "rows of nothing": attention((1, 4, 4, 8, 64, 16, 16), causal=True, offset=-4),
    "a mask": attention((2, 8, 2, 1, 64, 16, 32), mask=MASK),
    "softcap": attention((1, 2, 2, 4, 64, 16, 16), softcap=5.0),
}


def halves_of(group: FusedGroup, parts: int) -> tuple[FusedGroup, FusedGroup]:
    """Return the kernels of a chain in parts."""
    found = split_chain(group, parts)
    assert found is not None
    return verify_group(found[0]), verify_group(found[1])


@pytest.mark.parametrize("name", CASES)
def test_parts_compute_their_chain(name: str) -> None:
    group = group_of(CASES[name])
    inputs = arrays(group, 1)
    for parts in (2, 4, 8):
        before, after = halves_of(group, parts)
        states = interpret(before, {t: inputs[t] for t in before.inputs})
        found = interpret(after, {t: (inputs | states)[t] for t in after.inputs})
        for output, expected in interpret(group, inputs).items():
            np.testing.assert_allclose(found[output], expected, rtol=1e-9, atol=1e-9)


HALF_CASES: dict[str, Graph] = {
    "heads in groups": halves(2, 8, 2, 1, 128, 16, 32),
    "one query of each head": halves(2, 3, 3, 1, 128, 16, 32),
    "several queries": halves(1, 4, 2, 4, 128, 32, 16, dtype=DType.BF16),
    "parts beyond the mask": halves(1, 2, 2, 16, 128, 16, 16, causal=True, offset=40),
    "a mask": halves(2, 8, 2, 1, 128, 16, 32, mask=TensorType(DType.BOOL, (2, 1, 1, 128))),
}


@needs_opencl
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("name", HALF_CASES)
def test_parts_in_registers_compute_the_reference(name: str, kind: str) -> None:
    before, _ = halves_of(group_of(HALF_CASES[name]), 2)
    points = chain_points(before, TARGETS[kind], 1, kind=kind)
    assert points or (kind == "m64" and name == "one query of each head")  # which is no tile in shared memory
    for schedule in points:
        compute(before, schedule, TARGETS[kind])


def test_heads_that_share_keys_are_rows() -> None:
    group = group_of(halves(8, 32, 8, 1, 4096, 128, 128))
    chain = register_chain(group)
    assert chain is not None
    assert [s.axes[n].extent for s, n in zip(group.segments, chain.rows, strict=True)] == [4, 4, 4]


def test_parts_fill_the_machine() -> None:
    decode = group_of(halves(8, 32, 8, 1, 4096, 128, 128))
    assert all(64 * parts >= GPU.NUM_SM // 2 for parts in chain_candidates(decode, GPU))
    assert not chain_candidates(group_of(halves(4, 16, 16, 4096, 4096, 128, 128)), GPU)
    assert not chain_candidates(group_of(halves(1, 8, 2, 1, 97, 16, 16)), GPU)
