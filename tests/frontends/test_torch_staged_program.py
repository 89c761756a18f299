"""Programs of `torch.export` that are compiled in parts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cuts
from cuts.cli.main import main
from cuts.frontends.torch import UncompiledWarning
from cuts.ir import GraphError, UsageError
from cuts.tests.needs import needs_opencl, opencl_reason

nn = torch.nn
pytestmark = pytest.mark.filterwarnings("ignore")
ON_OPENCL = pytest.param(
    "opencl", marks=(pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason()))
)


@pytest.fixture(autouse=True, scope="module")
def _operators() -> Iterator[None]:
    """Register an operation that no frontend knows."""
    with torch.library._scoped_library("program_tests", "FRAGMENT"):
        halve = torch.library.custom_op("program_tests::halve", lambda_of(0.5), mutates_args=())
        halve.register_fake(torch.empty_like)
        yield


def lambda_of(factor: float) -> Callable[..., Any]:
    """Return a multiplication with the types that PyTorch reads a schema from."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


def halve(x: Any) -> Any:
    return torch.ops.program_tests.halve(x)


class AroundUnknownCall(nn.Module):
    """Layers around an unknown call, and results of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 24), nn.Linear(24, 16)
        self.register_buffer("table", torch.rand(24))

    def forward(self, x: Any, places: Any) -> Any:
        h = torch.relu(self.first(x)) * self.table
        h = halve(h) + self.table
        y = self.last(h).softmax(-1)
        return y, y[places], None, places + 1, x


class Counting(nn.Module):
    """Buffer that each run writes through an unknown call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 16))

    def forward(self, x: Any) -> Any:
        self.seen.add_(halve(torch.relu(x).exp()))
        return self.seen.softmax(-1)


def inputs() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(4, 16), torch.tensor([2, 0])


def arrays(program: Any, given: tuple[Any, ...]) -> dict[str, Any]:
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind.name == "USER_INPUT"]
    return {name: value.numpy() for name, value in zip(names, given, strict=True)}


def check(found: dict[str, Any], expected: Any) -> None:
    for value, like in zip(found.values(), expected, strict=True):
        if isinstance(like, torch.Tensor):
            np.testing.assert_allclose(value, like.detach().numpy(), rtol=1e-5, atol=1e-6)
        else:
            assert value == like


@pytest.mark.parametrize("target", ["reference", ON_OPENCL])
def test_a_module_compiles_around_an_unknown_call(target: str, tmp_path: Path) -> None:
    model, given = AroundUnknownCall().eval(), inputs()
    program = torch.export.export(model, given)
    with pytest.warns(UncompiledWarning, match=r"1 of \d+ nodes .* of program 'torch' run in PyTorch, the others in 2"):
        plan = cuts.build(model, given, target, fallback=True)
    assert plan.foreign == {"program_tests.halve.default": ["halve"]} and len(plan.parts) == 2
    x = arrays(program, given)
    check(plan.run(x), model(*given))
    assert all(result.ok for result in plan.verify(x))
    plan.save(tmp_path / "plan")
    again = cuts.load(tmp_path / "plan")
    check(again.run(x), model(*given))
    assert again.foreign == plan.foreign and again.inputs == plan.inputs
    again.save(tmp_path / "copy")
    check(cuts.load(tmp_path / "copy").run(x), model(*given))


def test_unknown_call_without_fallback_is_an_error() -> None:
    with pytest.raises(GraphError, match=r"1 operation is not supported: program_tests.halve.default"):
        cuts.build(AroundUnknownCall().eval(), inputs(), "reference")


def test_a_readable_model_is_one_plan() -> None:
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    assert isinstance(cuts.build(model, inputs()[:1], "reference", fallback=True), cuts.CompiledPlan)
    staged = cuts.build_staged(model, "reference", args=inputs()[:1])
    assert (len(staged.parts), staged.foreign, staged.warning) == (1, {}, "")


def test_state_persists_between_runs(tmp_path: Path) -> None:
    model, (x, _) = Counting(), inputs()
    plan = cuts.build(torch.export.export(model, (x,)), "reference", fallback=True)
    for _ in range(2):
        check(plan.run({"x": x.numpy()}), [model(x)])
    check(plan.state, [model.seen])
    assert list(plan.state) == ["seen"]
    assert all(result.ok for result in plan.verify({"x": x.numpy()}))
    check(plan.state, [model.seen])
    plan.save(tmp_path / "plan")
    plan.reset_state()
    again = cuts.load(tmp_path / "plan")
    for each in (plan, again):
        check(each.run({"x": x.numpy()}), [Counting()(x)])
    again.set_state({"seen": np.ones((4, 16), np.float32)})
    assert np.all(again.state["seen"] == 1)
    with pytest.raises(UsageError, match="no state 'other'"):
        again.set_state({"other": np.ones(3)})
    with pytest.raises(UsageError, match="state 'seen'"):
        again.set_state({"seen": np.ones((4, 15), np.float32)})


def test_results_do_not_change_later() -> None:
    class ReturnsInput(nn.Module):
        def forward(self, x: Any) -> Any:
            return x, x.t(), halve(torch.relu(x).exp().softmax(-1))

    x = inputs()[0].numpy()
    plan = cuts.build(ReturnsInput(), (torch.from_numpy(x.copy()),), "reference", fallback=True)
    found = plan.run({"x": x})
    before = found["x" if "x" in found else next(iter(found))].copy()
    x += 1
    assert np.array_equal(next(iter(found.values())), before)


def test_bfloat16_and_wrong_inputs() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU()).bfloat16()

    class Rounding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = model

        def forward(self, x: Any) -> Any:
            return self.layer(halve(self.layer(x)))

    whole, x = Rounding(), inputs()[0].bfloat16()
    plan = cuts.build(whole, (x,), "reference", fallback=True)
    given = x.view(torch.int16).numpy().view(np.uint16)
    (found,) = plan.run({"x": given}).values()
    np.testing.assert_allclose(found.astype(np.float32), whole(x).detach().float().numpy(), rtol=0.05, atol=0.05)
    with pytest.raises(UsageError, match="input 'x'"):
        plan.run({"x": np.zeros((4, 16))})


def test_a_choice_by_values_stays_in_pytorch() -> None:
    class Nonzero(nn.Module):
        def forward(self, x: Any) -> Any:
            h = torch.relu(x).exp().softmax(-1)
            rows = torch.nonzero(h.sum(-1) > 0.5)[:, 0]
            return h[rows].sum(0) * 2, h + 1

    x = inputs()[0]
    plan = cuts.build(Nonzero(), (x,), "reference", fallback=True)
    check(plan.run({"x": x.numpy()}), Nonzero()(x))


@needs_opencl
def test_archives_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, given = AroundUnknownCall().eval(), inputs()
    path, folder = tmp_path / "model.pt2", tmp_path / "model.plan"
    torch.export.save(torch.export.export(model, given), path)
    assert main(["compile", str(path), "-o", str(folder), "--target", "opencl", "--verify"]) == 0
    assert "run in PyTorch, the others in 2 compiled parts" in " ".join(capsys.readouterr().err.split())
    np.savez(tmp_path / "x.npz", x=given[0].numpy(), places=given[1].numpy())
    output = str(tmp_path / "y.npz")
    assert main(["run", str(folder), "--input", str(tmp_path / "x.npz"), "--output", output, "--iters", "3"]) == 0
    assert "% of the time" in capsys.readouterr().out
    found = np.load(output)
    np.testing.assert_allclose(next(iter(found.values())), model(*given)[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    assert main(["verify", str(folder), "--input", str(tmp_path / "x.npz")]) == 0
    with warnings.catch_warnings():
        assert main(["compile", str(path), "--strict", "-o", str(folder)]) == 3
    assert "1 operation is not supported" in " ".join(capsys.readouterr().err.split())
