"""Declarations as PyTorch operators: values, gradients, tracing, compiled models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cuts
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.frontends.torch.dynamo_backend.dynamo import dynamo_backend
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import GraphError, UsageError
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides

SPEC = """
op tested_scale "rows divided by their root mean square, then scaled per column" {
  type T: float
  in x: T[...s, D], weight: T[D]
  attr epsilon: float = 0.000001, power: int
  temp square: T[...s]
  out y: T[...s, D]
  square[...i] = (sum[d < D] x[...i, d] ** 2) / D
  y[...i, d] = (x[...i, d] * rsqrt(square[...i] + epsilon)) ** power * weight[d]
}

op tested_shift "a sum of any number of tensors, shifted where a shift is given" {
  type T: float
  in x*: T[N], shift?: T[M]
  out y: T[N[0]]
  y[i] = sum(x)[i] + (shift[i] if present(shift) else 0)
}

op tested_pair "rows picked by number, and how far they are from the first" {
  type T: float, I: int
  in x: T[N, D], row: I[M]
  out y: T[M, D], far: T[M, D]
  y[m, d] = x[index(row[m], N), d]
  far[m, d] = abs(x[index(row[m], N), d] - x[0, d])
}
"""


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("spec") / "tested.cuts"
    file.write_text(SPEC)
    return {name: cuts.torch_op(file, name) for name in ("tested_scale", "tested_shift", "tested_pair")}


def reference_scale(x: Any, weight: Any, power: int) -> Any:
    return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6)) ** power * weight


def random_tensor(*shape: int, grad: bool = False) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), requires_grad=grad)


@needs_opencl
@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 7)], ids=str)
def test_values_and_gradients_are_those_of_the_formula(operators: dict[str, Any], shape: tuple[int, ...]) -> None:
    x, weight = random_tensor(*shape, grad=True), random_tensor(shape[-1], grad=True)
    y = operators["tested_scale"](x, weight, power=2)
    expected = reference_scale(x, weight, 2)
    torch.testing.assert_close(y, expected)
    seed = random_tensor(*shape)
    found = torch.autograd.grad(y, (x, weight), seed)
    torch.testing.assert_close(found, torch.autograd.grad(expected, (x, weight), seed), rtol=1e-5, atol=1e-5)


@needs_opencl
def test_only_what_a_gradient_reads_is_kept(operators: dict[str, Any]) -> None:
    x, weight = random_tensor(4, 6), random_tensor(6, grad=True)
    y = operators["tested_scale"](x, weight, power=1)
    assert {t.shape for t in y.grad_fn.saved_tensors} == {x.shape}


@needs_opencl
@pytest.mark.parametrize(
    ("name", "arguments", "attributes"),
    [
        ("tested_scale", (random_tensor(3, 5, grad=True), random_tensor(5, grad=True)), {"power": 3, "epsilon": 0.5}),
        ("tested_scale", (random_tensor(5, 3).T.requires_grad_(), random_tensor(5)), {"power": 1}),
        ("tested_shift", ([random_tensor(4, grad=True), random_tensor(4)], random_tensor(4, grad=True)), {}),
        ("tested_shift", ([random_tensor(4)],), {}),
        ("tested_pair", (random_tensor(4, 3, grad=True), torch.tensor([2, 0, -1, 2])), {}),
    ],
    ids=["attributes", "strided", "lists", "absent", "indices"],
)
def test_pytorch_finds_no_fault(
    operators: dict[str, Any], name: str, arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> None:
    torch.library.opcheck(operators[name].default, arguments, attributes)


@needs_opencl
def test_several_results_share_a_gradient(operators: dict[str, Any]) -> None:
    x, row = random_tensor(4, 3, grad=True), torch.tensor([2, 0, -1, 2])
    y, far = operators["tested_pair"](x, row)
    (found,) = torch.autograd.grad((y * 2).sum() + far.sum(), x)
    (expected,) = torch.autograd.grad((x[row] * 2).sum() + (x[row] - x[0]).abs().sum(), x)
    torch.testing.assert_close(found, expected)


class Model(torch.nn.Module):
    """Linear layer, the operator, and operations after it."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator, self.linear = operator, torch.nn.Linear(6, 5)
        self.weight = torch.nn.Parameter(torch.ones(5))

    def forward(self, x: Any) -> Any:
        return torch.relu(self.operator(self.linear(x), self.weight, power=2)) + 1


@needs_opencl
def test_a_compiled_model_has_it_among_its_operations(operators: dict[str, Any]) -> None:
    seen: list[set[str]] = []

    def compile_graph(captured: Any, device: str) -> Any:
        seen.append({node.op for node in captured.graph.nodes})
        spec = Spec(captured.registry, captured.texts)
        plan = build_graph(captured.graph, spec, cuts.backends.find_target("opencl"), CompileOptions())
        return plan.run

    model = Model(operators["tested_scale"])
    x = random_tensor(3, 6)
    compiled = torch.compile(
        model, backend=lambda module, examples: dynamo_backend(module, examples, compile_graph), fullgraph=True
    )
    compiled(x).sum().backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    model(x).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-5, atol=1e-5)
    assert len(seen) == 2
    assert "tested_scale" in seen[0]
    assert any(op.startswith("tested_scale_grad") for op in seen[1])


@needs_opencl
def test_an_exported_program_is_built_with_it(operators: dict[str, Any], tmp_path: Path) -> None:
    model, x = Model(operators["tested_scale"]).eval(), random_tensor(3, 6)
    program = torch.export.export(model, (x,))
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(program.module()(x), expected)
    torch.export.save(program, tmp_path / "model.pt2")
    for source in (program, tmp_path / "model.pt2"):
        plan = cuts.build(source)
        (found,) = plan.run({"x": x.numpy()}).values()
        torch.testing.assert_close(torch.as_tensor(found), expected)
        assert all(comparison.ok for comparison in plan.verify())


@needs_opencl
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 0, 5)], ids=str)
def test_gradients_of_no_elements_are_zeros(operators: dict[str, Any], shape: tuple[int, ...]) -> None:
    x, weight = random_tensor(*shape, grad=True), random_tensor(shape[-1], grad=True)
    torch.autograd.backward(operators["tested_scale"](x, weight, power=2).sum())
    assert torch.equal(x.grad, torch.zeros(shape))
    assert torch.equal(weight.grad, torch.zeros(shape[-1]))


@needs_opencl
def test_the_gradient_of_a_gradient_is_one_error(operators: dict[str, Any]) -> None:
    x, weight = random_tensor(3, 5, grad=True), random_tensor(5, grad=True)
    y = operators["tested_scale"](x, weight, power=2)
    (found,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad(reference_scale(x, weight, 2).sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(UsageError, match="'tested_scale': the gradient of its gradient is not derived"):
        torch.autograd.grad(found.sum(), x)


@needs_opencl
def test_shapes_that_do_not_fit_are_one_error(operators: dict[str, Any]) -> None:
    with pytest.raises(GraphError, match="'weight': expected D = 5, found 4"):
        operators["tested_scale"](random_tensor(3, 5), random_tensor(4), power=1)
    with pytest.raises(RuntimeError, match="power"):  # PyTorch's own check of its schema
        operators["tested_scale"](random_tensor(3, 5), random_tensor(5))


@needs_opencl
def test_a_name_stands_for_one_declaration(operators: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "other.cuts"
    file.write_text(SPEC.replace("** power", "** (power + 1)"))
    with pytest.raises(UsageError, match="made of another declaration"):
        cuts.torch_op(file, "tested_scale")
    with pytest.raises(UsageError, match="which operation"):
        cuts.torch_op(file)
    file.write_text(SPEC)
    assert cuts.torch_op(file, "tested_scale") is operators["tested_scale"]
