"""PyTorch's operations beyond the core, forward and backward, against eager."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph

from ..needs import optional_module
from .reference_backend import assert_same_as_eager, reference_backend

F = torch.nn.functional
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
]
CHANCE = torch.Generator().manual_seed(0)


def x(*shape: int) -> Any:
    return torch.randn(shape, generator=CHANCE)


def i(*shape: int, below: int) -> Any:
    return torch.randint(0, below, shape, generator=CHANCE)


CASES: dict[str, tuple[Any, ...]] = {
    "histogram": (lambda a: (torch.histc(a, 5, -1, 1), torch.histc(a, 4), torch.histc(a * 0, 3)), (x(40),)),
    "windows of memory": (lambda a: a.as_strided((5, 4), (3, 1)) * torch.as_strided_copy(a, (5, 4), (1, 2), 3),
                          (x(20),)),
    "permuted memory": (lambda a: (a * 2).t().as_strided((3, 2), (2, 1)), (x(6, 4),)),
    "memory with gaps": (lambda a: (a * 2)[:, ::2].as_strided((3, 2), (4, 1), 1), (x(6, 4),)),
    "memory beyond a view": (lambda a: (a * 2)[:2].as_strided((3, 4), (8, 1)), (x(6, 4),)),
    "written memory": (lambda a, b: torch.as_strided_scatter(a, b, (3, 2), (4, 2), 1), (x(6, 4), x(3, 2))),
    "weight norm": (lambda v, g, h: (torch._weight_norm(v, g, 0), torch._weight_norm(v, h, 2)),
                    (x(6, 4, 3), x(6, 1, 1), x(1, 1, 3))),
    "average by a divisor": (
        lambda a: (F.avg_pool2d(a, 3, 2, 1, divisor_override=5),
                   F.avg_pool3d(a[None], 2, ceil_mode=True, divisor_override=3)), (x(1, 2, 7, 7),)),
    "pools without a batch": (
        lambda a: (F.adaptive_avg_pool2d(a, (5, None)), F.adaptive_avg_pool2d(a, (2, 3)), F.avg_pool2d(a, 3, 2, 1),
                   F.adaptive_max_pool2d(a, (3, 2)), F.max_pool2d(a, 3, 2, 1, ceil_mode=True),
                   F.adaptive_avg_pool3d(a[None], 2), F.max_pool3d(a[None], 2)), (x(3, 5, 7),)),
    "attention of five axes": (F.scaled_dot_product_attention, (x(2, 3, 2, 4, 8), x(2, 3, 2, 5, 8), x(2, 3, 2, 5, 4))),
    "attention of five axes, masked": (
        F.scaled_dot_product_attention, (x(2, 3, 2, 4, 8), x(2, 3, 2, 5, 8), x(2, 3, 2, 5, 8), x(2, 1, 1, 4, 5))),
    "attention of six axes, masked": (
        F.scaled_dot_product_attention, (*(x(2, 1, 3, 2, 4, 8) for _ in range(3)), x(2, 4, 4) > 0)),
    "product of bytes": (lambda a, b: torch._int_mm(a.to(torch.int8), b.to(torch.int8)) * 2,
                         (i(17, 16, below=99), i(16, 8, below=99))),
    **{f"segments, {how}": (lambda a, n, o, h=how: (torch.segment_reduce(a, h, lengths=n, unsafe=True),
                                                     torch.segment_reduce(a, h, offsets=o, initial=2.0)),
                            (x(6, 2), torch.tensor([2, 0, 3, 1]), torch.tensor([0, 2, 2, 5, 6])))
       for how in ("sum", "mean", "max", "min", "prod")},
    **{f"bags of a row that does not count, {how}": (
        lambda t, n, h=how: F.embedding_bag(n, t, padding_idx=1, mode=h), (x(6, 3), i(4, 3, below=6)))
       for how in ("sum", "mean", "max")},
    **{f"bags of any length, {how}": (lambda t, n, o, h=how: F.embedding_bag(n, t, o, mode=h),
                                      (x(6, 3), i(8, below=6), torch.tensor([0, 3, 3, 5])))
       for how in ("sum", "mean", "max")},
    "bags with weights": (
        lambda t, n, w, m, v, o: (F.embedding_bag(n, t, per_sample_weights=w, mode="sum"),
                                  F.embedding_bag(m, t, o, per_sample_weights=v, mode="sum", padding_idx=2)),
        (x(6, 3), i(4, 2, below=6), x(4, 2), i(8, below=6), x(8), torch.tensor([0, 3, 3, 5]))),
    "gradients by frequency": (lambda t, n: F.embedding(n, t, 1, scale_grad_by_freq=True), (x(6, 3), i(4, 3, below=6))),
    **{f"distances {p}": (lambda a, b, p=p: (torch.cdist(a, b, p), F.pdist(b, p)), (x(4, 3), x(5, 3)))
       for p in (0.5, 1.0, 2.0, 3.0, math.inf)},
    "distance": (lambda a, b: (torch.dist(a, b), torch.dist(a, b[0], 3)), (x(4, 3), x(4, 3))),
    **{f"products of groups of {axis}": (call, (x(*a).bfloat16(), x(*b).bfloat16(), torch.tensor([8, 16, 32]).int()),
                                         0.02)
       for axis, a, b, call in (
           ("rows", (32, 16), (3, 16, 8), lambda a, b, n: torch._grouped_mm(a, b, offs=n)),
           ("columns", (3, 8, 16), (16, 32), lambda a, b, n: torch._grouped_mm(a, b, offs=n)),
           ("terms", (16, 32), (32, 8), lambda a, b, n: torch._grouped_mm(a, b, offs=n)),
           ("matrices", (3, 8, 16), (3, 16, 8), lambda a, b, n: torch._grouped_mm(a, b)))},
    "modes": (lambda a: (torch.mode(a.round(), 1)[0], torch.mode(a.round(), 0, True)[0]), (x(3, 40),)),
    "medians of numbers": (lambda a: (a.where(a > 0, math.nan).nanmedian(1), a.where(a > 0, math.nan).nanmedian(),
                                      (a / 0).nanmedian(0, True)[0]), (x(4, 7),)),
    "powers of two": (lambda a, n: (torch.ldexp(a.detach(), n - 9), torch.frexp(a * 100)), (x(40), i(40, below=20))),
    "fractional steps": (lambda a, n: F.fractional_max_pool2d(
        a, (2, 3), output_size=(3, 4), return_indices=True, _random_samples=n.detach()),
                         (x(1, 2, 7, 9), x(1, 2, 2).sigmoid())),
    "fractional steps of three axes": (lambda a, n: F.fractional_max_pool3d(
        a, 2, output_size=(3, 4, 2), _random_samples=n.detach()), (x(2, 7, 9, 5), x(1, 2, 3).sigmoid())),
    "written positions": (lambda a, n, b: (torch.take(a, n), a.put(n, b), a.put(n, b, accumulate=True)),
                          (x(4, 3), torch.tensor([1, 5, 7]), x(3))),
    "written masks": (lambda a, b: a.masked_scatter(a > 0, b), (x(4, 5), x(4, 5))),
    "repeated elements": (lambda a, n: torch.repeat_interleave(a, n, 0, output_size=6),
                          (x(3, 2), torch.tensor([1, 0, 5]))),
    "functions of gamma": (
        lambda a: (torch.lgamma(a), torch.digamma(a), *(torch.polygamma(n, a) for n in (1, 3)), torch.mvlgamma(a, 2)),
        (x(40).abs() + 0.6,)),
    "functions of gamma below zero": (lambda a: (torch.lgamma(a), torch.digamma(a), torch.polygamma(2, a)),
                                      (-x(40).abs() - 0.3,)),
    "Bessel functions": (lambda a: (torch.i0(a), torch.special.i0e(a), torch.special.i1(a), torch.special.i1e(a)),
                         (x(40) * 9,)),
    "inverse error function": (torch.erfinv, (torch.linspace(-0.9999, 0.9999, 80),)),
    "divisors": (lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), (i(40, below=99) - 50, i(40, below=99) - 50)),
    "determinants": (lambda a: (torch.linalg.det(a), torch.linalg.det(a.mT), torch.linalg.slogdet(a)), (x(3, 4, 4),)),
    "inverses": (torch.linalg.inv, (x(2, 3, 3) + 3 * torch.eye(3),)),
    "solutions": (lambda a, b, c: (torch.linalg.solve(a, b), torch.linalg.solve(a, c), torch.linalg.solve(a.mT, b),
                                   torch.linalg.solve(a, b.mT, left=False)),
                  (x(2, 5, 5) + 5 * torch.eye(5), x(2, 5, 3), x(2, 5))),
    "triangular solutions": (
        lambda a, b: (torch.linalg.solve_triangular(a.tril(), b, upper=False),
                      torch.linalg.solve_triangular(a.triu(), b.mT, upper=True, left=False),
                      torch.linalg.solve_triangular(a[0], b, upper=True, unitriangular=True)),
        (x(2, 4, 4) + 4 * torch.eye(4), x(2, 4, 3))),
    "factors": (lambda a: torch.linalg.lu(a), (x(2, 4, 4),)),
    "factors of symmetric matrices": (
        lambda a, b: (torch.linalg.cholesky(a @ a.mT), torch.linalg.cholesky(a @ a.mT, upper=True),
                      torch.cholesky_solve(b, torch.linalg.cholesky(a @ a.mT)), torch.cholesky_inverse(a.tril())),
        (x(2, 3, 3) + 3 * torch.eye(3), x(2, 3, 2))),
    "rows of a largest norm": (lambda t, n: F.embedding(n, t.clone(), max_norm=1.0), (x(6, 3), i(4, 2, below=6))),
}  # fmt: skip


torchvision = optional_module("torchvision")
BOXES = torch.tensor([[0.0, 0.4, 0.7, 5.3, 6.1], [1.0, -2.0, 1.0, 3.5, 12.0], [0.0, 2.0, 2.0, 2.2, 2.1]])
REGIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"regions {ratio} {aligned}": (
        lambda a, r=ratio, n=aligned: torchvision.ops.roi_align(a, BOXES, (3, 2), 0.8, r, n), (x(2, 3, 8, 7),))
       for ratio in (2, 0) for aligned in (True, False)},
    "moved taps": (lambda a, o, w: torchvision.ops.deform_conv2d(a, o, w, padding=1, stride=(1, 2)),
                   (x(1, 4, 6, 6), x(1, 18, 6, 3), x(3, 4, 3, 3))),
    "moved and weighted taps": (
        lambda a, o, w, m, b: torchvision.ops.deform_conv2d(a, o, w, b, dilation=(2, 1), mask=m),
        (x(1, 4, 6, 6), x(1, 16, 4, 5), x(6, 2, 2, 2), x(1, 8, 4, 5), x(6))),
}  # fmt: skip


@pytest.mark.skipif(torchvision is None, reason="torchvision is not installed, or for another PyTorch")
@pytest.mark.parametrize("name", REGIONS)
def test_results_and_gradients_are_those_of_torchvision(name: str) -> None:
    assert_same_as_eager(*REGIONS[name])


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager(name: str) -> None:
    assert_same_as_eager(*CASES[name])


def evaluate_call(target: Any, operands: tuple[Any, ...], *numbers: Any, result: int = 0) -> Any:
    """Return a result of a call, evaluated by the reference.

    PyTorch's CPU may not have it.
    """
    graph = torch.fx.Graph()
    places = [graph.placeholder(f"operand{n}") for n in range(len(operands))]
    for place, operand in zip(places, operands, strict=True):
        place.meta["val"] = operand
    made = graph.call_function(target, (*places, *numbers))
    several = len(target._schema.returns) > 1
    graph.output((graph.call_function(operator.getitem, (made, result)) if several else made,))
    captured = graph_of_nodes(graph)
    given = {f"operand{n}": array_of(operand) for n, operand in enumerate(operands)}
    arrays = {name: given[name] for name in captured.graph.inputs}
    return evaluate_graph(captured.graph, captured.registry, arrays)[captured.graph.outputs[0]]


def test_products_of_experts_of_transformers() -> None:
    """Compare transformers' own operation, by its name alone."""
    library = torch.library.Library("transformers", "FRAGMENT")
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.define("grouped_mm_fallback_backward(Tensor a, Tensor b, Tensor offs, Tensor dy) -> (Tensor, Tensor)")
    operators, (a, b, dy) = torch.ops.transformers, (x(12, 4), x(3, 4, 5), x(12, 5))
    ends = torch.tensor([3, 3, 12])
    found = evaluate_call(operators.grouped_mm_fallback.default, (a, b, ends))
    np.testing.assert_allclose(found, torch.cat([a[:3] @ b[0], a[3:] @ b[2]]), 1e-5, 1e-5)
    wanted = (
        torch.cat([dy[:3] @ b[0].T, dy[3:] @ b[2].T]),
        torch.stack([a[:3].T @ dy[:3], b[1] * 0, a[3:].T @ dy[3:]]),
    )
    for number, expected in enumerate(wanted):
        found = evaluate_call(operators.grouped_mm_fallback_backward.default, (a, b, ends, dy), result=number)
        np.testing.assert_allclose(found, expected, 1e-5, 1e-5)


def test_random_numbers_are_those_of_pytorch() -> None:
    """Compare random numbers, drawn in order, and gradients that need them."""

    def draw(rows: Any) -> Any:
        noise = torch.empty(rows.shape[0], 1).bernoulli_(0.75)
        order = torch.rand(rows.shape[0]).argsort()
        scaled = F.dropout(rows * torch.randint(1, 4, (2,)), 0.25, True, inplace=True)
        return rows * noise + torch.randn(2), rows[order], scaled, torch.randperm(5), noise

    def compute(function: Any, rows: Any) -> Any:
        torch.manual_seed(5)
        results = function(rows)
        sum(y.sum() for y in results[:3]).backward()
        return *results, torch.rand(1), rows.grad

    torch._dynamo.reset()
    rows = torch.arange(80.0).reshape(40, 2)
    wanted, found = (
        compute(function, rows.clone().requires_grad_())
        for function in (draw, torch.compile(draw, backend=reference_backend))
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradients_of_bags_are_divided_by_frequencies() -> None:
    """PyTorch's CPU reads the frequency of another index."""
    table = torch.zeros(4, 1, requires_grad=True)
    torch._dynamo.reset()
    bags = torch.compile(partial(F.embedding_bag, scale_grad_by_freq=True, mode="sum"), backend=reference_backend)
    bags(torch.tensor([[0, 0], [1, 2], [2, 2]]), table).backward(torch.tensor([[1.0], [10.0], [100.0]]))
    torch.testing.assert_close(table.grad, torch.tensor([[1.0], [10.0], [70.0], [0.0]]))


def test_a_sampler_of_cudnn_counts_corners_at_centres() -> None:
    image, grid, dy = x(1, 2, 5, 6), x(1, 3, 3, 2), x(1, 2, 3, 3)
    expected = F.grid_sample(image.requires_grad_(), grid.requires_grad_(), align_corners=True)
    expected.backward(dy)
    aten = torch.ops.aten
    operands = image.detach(), grid.detach()
    np.testing.assert_allclose(evaluate_call(aten.cudnn_grid_sampler.default, operands), expected.detach(), 1e-4, 1e-5)
    for place, leaf in enumerate((image, grid)):
        found = evaluate_call(aten.cudnn_grid_sampler_backward.default, (*operands, dy), result=place)
        np.testing.assert_allclose(found, leaf.grad, 1e-4, 1e-5)


def test_a_histogram_of_integers_has_their_type() -> None:
    experts = torch.tensor([0, 3, 3, 1, 7, -1, 0], dtype=torch.int32)
    found = evaluate_call(torch.ops.aten.histc.default, (experts,), 4, 0, 3)
    np.testing.assert_array_equal(found, np.array([2, 1, 0, 2], np.int32), strict=True)
