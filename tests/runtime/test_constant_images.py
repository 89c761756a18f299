"""Constants that plans share on a device.

Equal bytes have one block, and released ones are found there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends import find_target, open_sequence_launcher
from cuts.ir import BackendError
from cuts.runtime import ConstantImages, ExternalSession, Plan, place_over_blocks, without_elements
from cuts.runtime.placement import constant_images
from cuts.tests.needs import needs_opencl

from .handmade import example_plan, expected_outputs, random_x
from .test_external_buffers import Arena


class SharedArena(Arena):
    """Memory of a caller that finds blocks by digest."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[str, int] = {}

    def share(self, digest: str, nbytes: int, fill: Callable[[int], None]) -> int:
        if digest not in self.known:
            self.known[digest] = self.new(nbytes)
            fill(self.known[digest])
        return self.known[digest]


@pytest.fixture(autouse=True)
def _small_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_images, "MIN_SHARED_BYTES", 1)


def run(plan: Plan, arena: SharedArena, x: Any, images: ConstantImages | None = None, held: Any = ()) -> Any:
    """Return the first output of a plan whose constants are shared."""
    chains = open_sequence_launcher(find_target("opencl"))
    if chains is None:
        pytest.skip("PoCL's kernels run on the host's memory")
    session = ExternalSession(plan, chains, held, arena.new, arena.share, images)
    layout, given = session.layout, arena.new(x.nbytes, x)
    made = [arena.new(layout.sizes[n]) for n in layout.fresh]
    fixed = session.fixed_addresses([given] if held else [], arena.new(layout.sizes[1]))
    session.launch(fixed, [*(() if held else (given,)), *made], 0)
    outlet = layout.output_views[0]
    block = [*fixed, *(() if held else (given,)), *made][outlet.block]
    elements = arena.bytes_at(block).view(outlet.dtype.numpy)[outlet.offset :]
    strides = tuple(s * outlet.dtype.size for s in outlet.strides)
    assert arena.is_untouched()
    return np.lib.stride_tricks.as_strided(elements, outlet.shape, strides).copy()


@needs_opencl
@pytest.mark.parametrize("held", [(), ("x",)])
def test_equal_constants_have_one_block(held: tuple[str, ...]) -> None:
    arena, x, plan = SharedArena(), random_x(), example_plan()
    for _ in range(3):
        assert np.allclose(run(plan, arena, x, held=held), expected_outputs(x)["y"], atol=1e-5)
    assert len(arena.known) == len(plan.constants) == 1
    other = evolve(plan, constants={name: 2 * array for name, array in plan.constants.items()})
    assert not np.allclose(run(other, arena, x, held=held), expected_outputs(x)["y"], atol=1e-5)
    assert len(arena.known) == 2
    assert np.allclose(run(plan, arena, x, held=held), expected_outputs(x)["y"], atol=1e-5)


@needs_opencl
def test_released_constants_are_found_on_the_device() -> None:
    arena, x, plan = SharedArena(), random_x(), example_plan()
    images, empty = ConstantImages.of_plan(plan), without_elements(plan)
    assert place_over_blocks(empty, (), images.large) == place_over_blocks(plan, (), images.large)
    run(empty, arena, x, images)
    images.release()
    assert np.allclose(run(empty, arena, x, images), expected_outputs(x)["y"], atol=1e-5)
    with pytest.raises(BackendError, match="expected its elements on the device, found none"):
        run(empty, SharedArena(), x, images)


def test_constants_that_steps_write_are_not_shared() -> None:
    plan = example_plan()
    (name,) = plan.constants
    written = evolve(plan, constants={name: plan.constants[name], "y": np.zeros(plan.types["y"].shape, np.float32)})
    assert ConstantImages.of_plan(written).large == (plan.storages[name].buffer,)


def test_several_constants_may_lie_in_one_buffer() -> None:
    plan = example_plan()
    (name,) = plan.constants
    storage, type_ = plan.storages[name], plan.types[name]
    alias = evolve(plan, types={**plan.types, "again": type_}, storages={**plan.storages, "again": storage},
                   constants={name: np.zeros(type_.shape, np.float32), "again": plan.constants[name]})  # fmt: skip
    wanted = ConstantImages.of_plan(plan).image(storage.buffer)
    assert np.array_equal(ConstantImages.of_plan(alias).image(storage.buffer), wanted)
