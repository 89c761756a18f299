"""Plans of released versions open, run and equal the reference.

    python -m cuts.tests.runtime.test_earlier_plans      # writes those of this version

`docs/reference/versions.md` has the promise.
"""

from __future__ import annotations

import re
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import cuts
import numpy as np
import pytest
from attrs import asdict, evolve
from cuts import DType, Graph, Node, TensorType
from cuts.backends import find_target
from cuts.runtime.files.target_record import complete_target
from cuts.tests.needs import needs_opencl

PLANS = Path(__file__).parent / "plans"
SPEC = """op double_plus "twice the values, plus a bias per column" {
  type T: float
  in x: T[R, C], bias: T[C]
  out y: T[R, C]
  y[r, c] = 2.0 * x[r, c] + bias[c]
}
"""


def small_model() -> Graph:
    """Return a graph with a user's operation and two constants."""
    types = {name: TensorType(DType.F32, shape) for name, shape in {"x": (5, 8), "w": (8, 6), "b": (6,)}.items()}
    types |= dict.fromkeys(("product", "moved", "y"), TensorType(DType.F32, (5, 6)))
    nodes = (
        Node("a", "matmul", ("x", "w"), ("product",)),
        Node("b", "double_plus", ("product", "b"), ("moved",)),
        Node("c", "softmax", ("moved",), ("y",)),
    )
    constants = {"w": np.arange(48, dtype=np.float32).reshape(8, 6) / 48, "b": np.ones(6, np.float32)}
    return Graph("small", ("x",), ("y",), types, nodes, constants)


def stored_plans(target: str) -> list[Path]:
    """Return the folders of the stored plans of a target."""
    return sorted(PLANS.glob(f"*/{target}"))


@needs_opencl
@pytest.mark.parametrize("folder", stored_plans("opencl"), ids=lambda path: path.parent.name)
def test_an_earlier_plan_runs_right(folder: Path) -> None:
    plan = cuts.load(folder)
    assert [*plan.inputs, *plan.outputs] == ["x", "y"]
    assert all(result.ok for result in plan.verify())


@pytest.mark.parametrize("folder", stored_plans("cuda"), ids=lambda path: path.parent.name)
def test_an_earlier_plan_for_a_gpu_opens(folder: Path) -> None:
    plan = cuts.load(folder)
    assert isinstance(plan, cuts.CompiledPlan)
    assert (plan.plan.cuts, plan.target.dialect) == (folder.parent.name, "cuda")
    assert all(kernel.name in kernel.source for kernel in plan.kernels)
    assert plan.own_operations() == ("double_plus",)


def test_a_target_of_another_version_is_completed() -> None:
    target = find_target("cuda:sm_80")
    record = asdict(target) | {"formerly": 3, "NUM_SM": 7, "costs": asdict(target.costs) | {"formerly": 4}}
    del record["l2_bytes"]
    found = complete_target(record)
    assert found == asdict(evolve(target, NUM_SM=7))


def test_this_minor_version_has_stored_plans() -> None:
    minor = ".".join(cuts.__version__.split(".")[:2])
    for target in ("opencl", "cuda"):
        assert [path for path in stored_plans(target) if re.match(rf"{re.escape(minor)}\.", path.parent.name)]


def write_plans() -> None:
    """Write the plans of this version."""
    folder = PLANS / cuts.__version__
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as place, chdir(place):
        Path("double_plus.cuts").write_text(SPEC, encoding="utf-8")
        for target in ("opencl", "cuda:sm_90"):
            made = cuts.build(small_model(), target=target, spec=["double_plus.cuts"])
            made.save(folder / target.partition(":")[0])


if __name__ == "__main__":
    write_plans()
