"""Launch parameters of a plan for callers that launch its kernels."""

from __future__ import annotations

from pathlib import Path

import cuts
import numpy as np
import pytest
from cuts.backends import Pointer, open_device
from cuts.compile.plan import CompiledPlan
from cuts.ir.errors import UsageError
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import example_plan
from cuts.tests.runtime.test_earlier_plans import SPEC, small_model


def test_launches_have_the_arguments_of_their_steps() -> None:
    plan = CompiledPlan(example_plan("cuda"))
    assert len(plan.launches) == plan.plan.launch_count
    for launch, step in zip(plan.launches, plan.plan.steps, strict=True):
        assert launch.kernel is plan.kernels[step.kernel]
        assert tuple(argument.tensor for argument in launch.arguments) == step.tensors
        for argument in launch.arguments:
            assert 0 <= argument.offset == argument.base * argument.dtype.size < plan.arena


def test_a_tensor_without_a_place_is_an_error() -> None:
    with pytest.raises(UsageError, match="has no tensor 'nothing'"):
        CompiledPlan(example_plan("cuda")).offset("nothing")


@needs_opencl
def test_a_caller_runs_a_plan_by_its_launches(tmp_path: Path) -> None:
    path = tmp_path / "double_plus.cuts"
    path.write_text(SPEC, encoding="utf-8")
    plan = cuts.build(small_model(), target="opencl", spec=[path])
    device = open_device(plan.target)
    names = [kernel.name for kernel in plan.kernels]
    loaded = dict(zip(names, device.build(plan.kernels), strict=True))
    arena, x = device.allocate(plan.arena), np.linspace(-1, 1, 40, dtype=np.float32).reshape(5, 8)
    for name, array in {**plan.constants, "x": x}.items():
        device.upload(Pointer(arena, plan.offset(name)), np.ascontiguousarray(array))
    for launch in plan.launches:
        device.bind(loaded[launch.kernel.name], launch.kernel, [Pointer(arena, a.offset) for a in launch.arguments])()
    found = np.empty(plan.outputs["y"].shape, np.float32)
    device.download(found, Pointer(arena, plan.offset("y")))
    assert np.array_equal(found, plan.run({"x": x})["y"])
