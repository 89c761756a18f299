"""Attention with fully masked rows and padded batches matches PyTorch.

So do its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from ..needs import needs_opencl

torch = pytest.importorskip("torch")
F = torch.nn.functional

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
]

#: Queries and keys: few, and rows that come in parts.
SIZES = {"few": (4, 5), "long": (70, 300)}


def compile_function(function: Callable[..., Any]) -> Callable[..., Any]:
    from cuts.compile.torch_backend import cuts_backend

    torch._dynamo.reset()
    found: Callable[..., Any] = torch.compile(function, backend=cuts_backend, dynamic=False)
    return found


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def operands(size: str, dtype: Any = torch.float32) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    queries, keys = SIZES[size]
    q, k, v = (torch.randn(2, 2, rows, 8, dtype=dtype) for rows in (queries, keys, keys))
    return q, k, v


def masks(size: str, dtype: Any = torch.float32) -> dict[str, Any]:
    """Return masks with empty rows, rows of one key, unused keys."""
    queries, keys = SIZES[size]
    seen = torch.rand(2, 1, queries, keys) < 0.6
    seen[..., 3] = False
    seen[0, :, 1] = seen[1, :, 2] = False
    seen[1, :, 2, 4] = True
    padded = torch.ones(2, 1, 1, keys, dtype=torch.bool)
    padded[0], padded[1, ..., :3] = False, False
    added = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -math.inf)
    return {"truth values": seen, "infinities": added, "padded": padded}


def error_bound(q: Any, k: Any, v: Any) -> float:
    """Return the error bound of rounded scores, weights and sums.

    Results are means of values.
    """
    scores = (q.double() @ k.double().mT).abs().max() / math.sqrt(q.shape[-1])
    return float(torch.finfo(v.dtype).eps * (4 + 4 * scores) * v.double().abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["truth values", "infinities", "padded"])
@needs_opencl
def test_a_query_that_sees_no_key_gives_zeros(kind: str, size: str, dtype: Any) -> None:
    given = operands(size, dtype)
    mask = masks(size, dtype)[kind]
    with torch.no_grad():
        expected, found = attend(*given, mask), compile_function(attend)(*given, mask)
    assert not found[0].any() if kind == "padded" else not found[0, :, 1].any()
    assert torch.allclose(found.double(), expected.double(), atol=error_bound(*given), rtol=0)


@pytest.mark.parametrize("kind", ["truth values", "infinities", "padded"])
@needs_opencl
def test_gradients_of_masked_rows_are_zeros(kind: str) -> None:
    mask, turned = masks("few")[kind], torch.randn(2, 2, 4, 8)
    gradients = []
    for function in (attend, compile_function(attend)):
        given = [x.requires_grad_() for x in operands("few")]
        (function(*given, mask) * turned).sum().backward()
        gradients.append([x.grad for x in given])
    for expected, found in zip(*gradients, strict=True):
        assert torch.allclose(found, expected, atol=1e-5, rtol=1e-5)


@needs_opencl
def test_real_tokens_of_a_padded_batch_are_numbers() -> None:
    """Return numbers for unpadded tokens.

    Padding on the left leaves empty causal rows, whose results the next layer reads.
    """
    torch.manual_seed(0)
    weights, x = torch.randn(2, 8, 8) / 3, torch.randn(2, 6, 8)
    seen = torch.ones(6, 6).tril().bool() & torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6]).bool()[:, None]

    def layers(x: Any, seen: Any) -> Any:
        for weight in weights:
            h = (x @ weight)[:, None]
            x = x + attend(h, h, h, seen[:, None])[:, 0]
        return x

    with torch.no_grad():
        found = compile_function(layers)(x, seen)
        assert torch.isfinite(found).all()
        assert torch.allclose(found, layers(x, seen), atol=1e-5)


@pytest.mark.parametrize("plain", [True, False])
@needs_opencl
def test_softmax_of_nothing_is_what_pytorch_says(plain: bool) -> None:
    """Match PyTorch's softmax of an empty row.

    A decomposed softmax has NaN there; PyTorch's own of attention has zeros.
    """

    def weights(x: Any, mask: Any) -> Any:
        x = torch.where(mask, x, -math.inf)
        return torch.softmax(x, -1) if plain else torch.ops.aten._safe_softmax(x, -1)

    x, mask = torch.randn(3, 4), torch.tensor([[1, 0, 1, 1], [0] * 4, [1] * 4]).bool()
    with torch.no_grad():
        found = compile_function(weights)(x, mask)
        assert found[1].isnan().all() if plain else not found[1].any()
        assert torch.allclose(found, weights(x, mask), atol=1e-6, equal_nan=True)


@needs_opencl
def test_causal_attention_of_more_queries_than_keys() -> None:
    q, k, v = (torch.randn(1, 2, rows, 8) for rows in (5, 3, 3))

    def causal(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    seen = torch.ones(5, 3).tril().bool()
    with torch.no_grad():
        assert torch.allclose(compile_function(causal)(q, k, v), attend(q, k, v, seen), atol=1e-5)


#: Halves whose gradients compute scores again: heads of queries and of keys, queries, keys, arguments.
TRAINED_CASES: dict[str, tuple[int, int, int, int, dict[str, Any]]] = {
    "whole": (4, 4, 64, 64, {}),
    "causal": (2, 2, 40, 40, {"is_causal": True}),
    "groups": (4, 2, 33, 47, {"enable_gqa": True, "scale": 0.3}),
    "a mask": (2, 2, 33, 47, {"attn_mask": True}),
}


@needs_opencl
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", TRAINED_CASES)
def test_gradients_are_those_of_doubles(name: str, dtype: Any) -> None:
    heads, groups, queries, keys, given = TRAINED_CASES[name]
    torch.manual_seed(1)
    given = dict(given)
    if "attn_mask" in given:
        given["attn_mask"] = torch.rand(queries, keys) < 0.5
        given["attn_mask"][3] = False

    def attend_to(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, **given)

    sizes = ((heads, queries), (groups, keys), (groups, keys), (heads, queries))
    *tensors, g = (torch.randn(2, n, rows, 16).to(dtype) for n, rows in sizes)

    def results(function: Callable[..., Any], kind: Any) -> list[Any]:
        leaves = [t.to(kind).requires_grad_() for t in (t.detach().clone() for t in tensors)]
        y = function(*leaves)
        y.backward(g.to(kind))
        return [y.detach(), *(leaf.grad for leaf in leaves)]

    expected, eager = results(attend_to, torch.float64), results(attend_to, dtype)
    found = results(compile_function(attend_to), dtype)
    assert [t.stride() for t in found] == [t.stride() for t in eager]
    for value, right in zip(found, expected, strict=True):
        error = (value.double() - right).norm() / right.norm()
        assert error < 4 * torch.finfo(dtype).eps
