"""PyTorch's results with numbers of rows that depend on values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuts
from cuts.compile.dynamic import DynamicPlan
from cuts.frontends.torch import UncompiledWarning
from cuts.tests.needs import needs_opencl
from torch.utils._pytree import tree_leaves


def _several_results(x: Any) -> Any:
    y = (x * 3)[x > 0]
    return y.sum(), y.shape[0], y.view(-1, 1).expand(-1, 3) + torch.arange(y.shape[0])[:, None]


def _places(x: Any) -> Any:
    i, j = torch.where(x > 0)
    return x[i, j].mean(), torch.cat([i, j]), torch.nonzero(x > 0)


def _rows(x: Any) -> Any:
    keep = x.sum(1) > 0
    return x[keep], x[keep].softmax(0), x[keep] @ x.t(), x.relu()


def _sums_written(x: Any) -> Any:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask].cumsum(0)
    return y


def _nested_selection(x: Any) -> Any:
    y = x[x > 0]
    return y[y > 1], y[y > 1].sum()


def _two(x: Any) -> Any:
    a, b = x[x > 0], x[x < 0]
    return torch.cat([a, b]), a.mean() - b.mean(), a.flip(0)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "positions": lambda x: torch.nonzero(x > 0),
    "distinct": lambda x: torch.unique(x, return_inverse=True, return_counts=True),
    "distinct truth values": lambda x: torch.unique(x > 0),
    "runs": lambda x: torch.unique_consecutive(x.flatten().int(), return_counts=True),
    "selection": lambda x: torch.masked_select(x, x[0] > 0) * 2 + 1,
    "only the number": lambda x: x / x[x > 0].shape[0],
    "several": _several_results, "places": _places, "rows": _rows,
    "written": _sums_written, "nested": _nested_selection, "two": _two,
}  # fmt: skip


def _inputs() -> Iterator[Any]:
    random = torch.Generator().manual_seed(0)
    yield torch.randint(-3, 4, (5, 7), generator=random).float()
    yield -torch.rand(5, 7, generator=random) - 0.1
    yield torch.rand(5, 7, generator=random)


def _capturing() -> Any:
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def _check(found: Any, wanted: Any) -> None:
    for a, b in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if isinstance(b, torch.Tensor):
            assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            torch.testing.assert_close(a, b, equal_nan=True)
        else:
            assert a == b


@needs_opencl
@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiled_functions(name: str) -> None:
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    with warnings.catch_warnings(action="error", category=UncompiledWarning), _capturing():
        fast = torch.compile(function, backend="cuts", fullgraph=True)
        for x in _inputs():
            _check(fast(x), function(x))


class Model(torch.nn.Module):
    """A function as a module with a layer."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function, self.layer = function, torch.nn.Linear(7, 7)

    def forward(self, x: Any) -> Any:
        return self.function(x), self.layer(x)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_exported_programs(name: str, tmp_path: Any) -> None:
    model = Model(FUNCTIONS[name]).eval()
    plan = cuts.build(model, (torch.randn(5, 7),), "reference")
    assert isinstance(plan, DynamicPlan)
    plan.save(tmp_path / "plan")
    again = cuts.load(tmp_path / "plan")
    for x in _inputs():
        wanted = [w.detach().numpy() if isinstance(w, torch.Tensor) else w for w in tree_leaves(model(x))]
        for each in (plan, again):
            for a, b in zip(each.run({"x": x.numpy()}).values(), wanted, strict=True):
                assert np.shape(a) == np.shape(b) and np.asarray(a).dtype == np.asarray(b).dtype
                np.testing.assert_allclose(a, b, 1e-5, 1e-5)
        assert all(result.ok for result in plan.verify({"x": x.numpy()}))


def test_rows_of_a_dim_that_varies() -> None:
    model = Model(lambda x: x[x.sum(1) > 0].softmax(0))
    program = torch.export.export(model, (torch.randn(4, 7),), dynamic_shapes=({0: torch.export.Dim("n", max=8)},))
    plan = cuts.build(program, target="reference")
    for count in (1, 3, 8):
        x = torch.randn(count, 7, generator=torch.Generator().manual_seed(count))
        for a, b in zip(plan.run({"x": x.numpy()}).values(), model(x), strict=True):
            np.testing.assert_allclose(a, b.detach().numpy(), 1e-5, 1e-5)


@needs_opencl
def test_other_parts_stay_compiled() -> None:
    """Distinct elements of a selection stay in PyTorch, and nothing else."""
    torch._dynamo.reset()

    def function(x: Any) -> Any:
        y = x.exp().softmax(1).cumsum(0)
        found = torch.unique((y * 9)[y > 0.2].round())
        return found, (y @ y.t()).softmax(0).cumsum(1)

    fast = torch.compile(function, backend="cuts")
    with _capturing():
        for number, x in enumerate(x.repeat(4, 1) for x in _inputs()):
            with pytest.warns(UncompiledWarning, match="compiled part") if not number else nullcontext():
                found = fast(x)
            _check(found, function(x))
