"""Masked tiles beyond both factors of a product.

Results computed from missing elements are guarded.
"""

from __future__ import annotations

import pytest
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.passes.schedule.space import Space, make_space

from ..needs import DEVICES
from .cases import builder, legal_points, unite
from .test_points import SPACES, _device, check

#: Functions that make something of nothing, on either side; points of each.
FACTORS, POINTS = (("cos", "sigmoid"), ("softplus", "cos")), 2


def ragged_points(space: Space) -> list[Schedule]:
    """Return points that stage both factors with a partial last block."""
    found: list[Schedule] = []
    for structure in space.templates:
        for point in legal_points(space, structure, 1, 64):
            (reduction,) = point.segments[0].reductions
            uneven = any(dim.extent % dim.block_k for dim in reduction.dims)
            if len(reduction.staging) == 2 and uneven and not reduction.mma:
                found.append(point)
                break
    return found[:POINTS]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("factors", FACTORS)
def test_what_is_not_there_is_no_term(device: str, factors: tuple[str, str]) -> None:
    make = builder()
    left, right = make.node(factors[0], make.input(9, 13)), make.node(factors[1], make.input(13, 10))
    product = make.node("matmul", left, right)
    group: FusedGroup = unite(make.programs(), product)
    points = ragged_points(make_space(group, SPACES[device]))
    assert points
    for point in points:
        check(_device(device), SPACES[device], group, point)
