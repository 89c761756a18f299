"""Models of PyTorch for ranges of sizes: exported programs and `torch.compile`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cuts
import pytest
from cuts.compile import torch_backend
from cuts.ir import UsageError

torch = pytest.importorskip("torch")
nn = torch.nn


class _Encoder(nn.Module):  # type: ignore[misc, name-defined]
    """Attention with learned positions; results over, along and at the end of the rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(8, 8)
        self.positions = nn.Parameter(torch.randn(16, 8))

    def forward(self, x: Any) -> Any:
        batch, rows, _ = x.shape
        q = self.project(x + self.positions[:rows])
        y = torch.softmax(q @ q.transpose(1, 2) / 3, -1) @ q
        return {"mean": y.mean(1), "last": y[:, -1], "flat": y.reshape(batch * rows, 8), "rows": x.shape[1]}


@pytest.fixture(scope="module")
def program() -> Any:
    dims = {0: torch.export.Dim("batch", min=1, max=4), 1: torch.export.Dim("rows", min=1, max=16)}
    return torch.export.export(_Encoder().eval(), (torch.randn(3, 5, 8),), dynamic_shapes={"x": dims})


def _check(plan: Any, model: Any, batch: int, rows: int) -> None:
    x = torch.randn(batch, rows, 8)
    with torch.no_grad():
        expected = model(x)
    found = plan.run({"x": x})
    assert found["rows"] == rows
    for name in ("mean", "last", "flat"):
        torch.testing.assert_close(torch.as_tensor(found[name]), expected[name], rtol=1e-3, atol=1e-4)


def test_a_program_brings_its_dims(program: Any, tmp_path: Path) -> None:
    torch.export.save(program, tmp_path / "encoder.pt2")
    plan = cuts.build(str(tmp_path / "encoder.pt2"), buckets={"x.0": [4], "x.1": [16]})
    assert [str(dim) for dim in plan.dims] == ["x.0 in 1..4", "x.1 in 1..16"]
    for batch, rows in [(1, 1), (4, 16), (3, 5), (1, 15), (2, 1)]:
        _check(plan, _Encoder().eval(), batch, rows)
    with pytest.raises(UsageError, match=r"dim 1 \(x.1\): expected a size of 1..16, found 17"):
        plan.run({"x": torch.zeros(1, 17, 8)})


def test_shapes_fix_the_dims_of_a_program(program: Any) -> None:
    plan = cuts.build(program, target="reference", shapes={"x": (2, 3, 8)})
    assert isinstance(plan, cuts.CompiledPlan) and plan.inputs["x"].shape == (2, 3, 8)


def test_a_module_takes_ranges() -> None:
    model = _Encoder().eval()
    plan = cuts.build(model, (torch.zeros(2, 3, 8),), shapes={"x": (2, "rows", 8)}, dims={"rows": (2, 7)})
    for rows in (2, 3, 7):
        _check(plan, model, 2, rows)


def test_a_program_without_bounds_needs_a_range() -> None:
    export = torch.export.export(nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    with pytest.raises(UsageError, match="of the program has no greatest size; give a range"):
        cuts.build(export, target="reference")


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Plans that the backend asked for."""
    torch._dynamo.reset()
    found: list[Any] = []
    build = torch_backend.build_cached
    monkeypatch.setattr(torch_backend, "build_cached", lambda *a, **options: found.append(a) or build(*a, **options))
    yield found
    torch._dynamo.reset()


def test_sizes_share_plans_of_powers_of_two(builds: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(0), nn.LayerNorm(8)).eval()
    call = torch.compile(model, backend=torch_backend.cuts_backend, dynamic=True, options={"buckets": True})
    with torch.no_grad():
        for rows in (5, 7, 8, 6, 9, 16, 3):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(call(x), model(x), rtol=1e-3, atol=1e-4)
    assert len(builds) == 3


def test_gradients_and_views_are_compiled_for_each_size(builds: list[Any]) -> None:
    call = torch.compile(
        lambda x: (x * 2, x.view(-1)), backend=torch_backend.cuts_backend, dynamic=True, options={"buckets": True}
    )
    for rows in (5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        y, flat = call(x)
        y.sum().backward()
        assert torch.equal(y, x * 2) and torch.equal(flat, x.view(-1)) and torch.equal(x.grad, torch.full_like(x, 2))


class _Cache(nn.Module):  # type: ignore[misc, name-defined]
    """Rows written into a cache at a position that the device has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(2, 20, 4))
        self.register_buffer("position", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.rows.index_copy_(1, torch.arange(x.shape[1]) + self.position, x * 2)
        self.position.add_(x.shape[1])
        return (x @ self.rows.transpose(1, 2)).softmax(-1).mean(1)


def test_sizes_share_plans_that_update_a_cache(builds: list[Any]) -> None:
    model, expected = _Cache(), _Cache()
    call = torch.compile(model, backend=torch_backend.cuts_backend, dynamic=True, options={"buckets": True})
    with torch.no_grad():
        for rows in (5, 3, 4, 6, 2):
            x = torch.randn(2, rows, 4)
            torch.testing.assert_close(call(x), expected(x), rtol=1e-3, atol=1e-4)
            assert torch.equal(model.rows, expected.rows) and model.position == expected.position
    assert len(builds) == 3


#: Functions and arguments at a size: dims of 0, joined dims, numbers without bounds, even sizes.
VARYING: dict[str, tuple[Any, Any]] = {
    "nothing": (lambda a: (a.sum(0), a * 2), lambda n: (torch.ones(0, n),)),
    "joined": (lambda a, b: torch.cat([a, b]).softmax(0), lambda n: (torch.randn(n, 3), torch.randn(n + 1, 3))),
    "number": (lambda a, k: a * k + a.shape[0], lambda n: (torch.randn(n, 3), n + 2)),
    "even": (lambda a: a.view(-1, 2).t().reshape(-1), lambda n: (torch.randn(2 * n),)),
}  # fmt: skip


@pytest.mark.parametrize("name", VARYING)
def test_buckets_serve_or_leave_sizes(name: str, builds: list[Any]) -> None:
    function, arguments = VARYING[name]
    call = torch.compile(function, backend=torch_backend.cuts_backend, dynamic=True, options={"buckets": True})
    for size in (5, 7):
        given = arguments(size)
        torch.testing.assert_close(call(*given), function(*given), rtol=1e-3, atol=1e-4)
