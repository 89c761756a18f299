"""PyTorch's operations on empty tensors and scalars, errors included."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend  # torch is optional

from ..needs import needs_opencl

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")
NUMBER, EMPTY, BYTES = torch.tensor(1.5), torch.zeros(0, dtype=torch.int64), torch.zeros(3, dtype=torch.uint8)


def x(*shape: int) -> Any:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


def i(*places: int) -> Any:
    return torch.tensor(places)


#: Functions and operands: a dim of the operands or of the results is 0.
EMPTY_CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    **{f"adaptive {name} {sizes}": (lambda a, p=pool, s=sizes: p(a, s), (x(2, 2, 4, 3),))
       for name, pool in (("average", F.adaptive_avg_pool2d), ("maximum", F.adaptive_max_pool2d))
       for sizes in ((0, 2), (2, 0), (0, 0))},
    "adaptive average without batch": (lambda a: F.adaptive_avg_pool2d(a, (0, 0)), (x(1, 2, 3),)),
    "adaptive average 1d": (lambda a: F.adaptive_avg_pool1d(a, 0), (x(1, 2, 3),)),
    "adaptive maximum 3d": (lambda a: F.adaptive_max_pool3d(a, (0, 1, 2)), (x(2, 3, 4, 5),)),
    "top": (lambda a: torch.topk(a, 0), (x(5, 3),)),
    "pool": (lambda a: (F.max_pool2d(a, 2), F.avg_pool2d(a, 2), F.lp_pool2d(a, 2, 2)), (x(0, 2, 4, 4),)),
    "convolution": (lambda a, w: F.conv2d(a, w, padding=1), (x(0, 2, 4, 4), x(3, 2, 3, 3))),
    "transposed convolution": (lambda a, w: F.conv_transpose2d(a, w), (x(0, 2, 4, 4), x(2, 3, 2, 2))),
    "products": (lambda a, b: (a @ b, torch.addmm(a.sum(1), a, b)), (x(3, 0), x(0, 3))),
    "reductions": (lambda a: (a.sum(0), a.prod(0), a.mean(0), a.var(0), a.logsumexp(0), a.amax(1)), (x(0, 3),)),
    "scans": (lambda a: (a.cumsum(0), a.cummax(0), a.sort(0), a.flip(0), a.roll(1)), (x(0, 3),)),
    "joins": (lambda a, b: (torch.cat([a, b]), torch.stack([a, a], 1), F.pad(a, (1, 1))), (x(0, 3), x(2, 3))),
    "lookups": (lambda a, n: (a[n], F.embedding(n, a), a.index_select(0, n), a.index_add(0, n, a[n])),
                (x(3, 2), EMPTY)),
    "windows": (lambda a: (a.unfold(0, 0, 1), a.unfold(1, 2, 1)), (x(3, 2),)),
    "columns": (lambda a: F.fold(F.unfold(a, 2), (4, 4), 2), (x(0, 2, 4, 4),)),
    "norms": (lambda a: (F.layer_norm(a, (3,)), F.normalize(a), torch.softmax(a, 0)), (x(0, 3),)),
}  # fmt: skip
NUMBER_CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "unfold": (lambda a: (a.unfold(0, 1, 1), a.unfold(-1, 0, 1), a.unfold(0, 1, 2)), (NUMBER,)),
    **{f"index_reduce {how} {own}": (lambda a, n, b, h=how, s=own: a.index_reduce(0, n, b, h, include_self=s),
                                     (NUMBER, torch.tensor(0), torch.tensor(2.5)))
       for how in ("prod", "mean", "amax", "amin") for own in (True, False)},
    "reductions": (lambda a: (a.sum(0), a.max(0), a.var(0, correction=0), a.argmin(0), a.median(0)), (NUMBER,)),
    "scans": (lambda a: (a.cumsum(0), a.cummin(0), a.sort(0), torch.topk(a, 1), a.flip(()), a.roll(1)), (NUMBER,)),
    "lookups": (lambda a, n: (a.index_select(0, n), a.take(n), a.gather(0, n), a.index_fill(0, n, 3.0)),
                (NUMBER, i(0))),
    "updates": (lambda a, n: (a.scatter(0, n, a), a.scatter_add(0, n, a), a.index_copy(0, n, a)),
                (NUMBER, torch.tensor(0))),
}  # fmt: skip
REFUSED_CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "maximum": (lambda a: a.max(), (x(0, 3),)),
    "minimum": (lambda a: a.min(), (x(0, 3),)),
    "kernel": (lambda a, w: F.conv2d(a, w), (x(1, 2, 4, 4), x(3, 2, 0, 2))),
    "fill": (lambda a: torch.full_like(a, 300), (BYTES,)),
}


def run_compiled(function: Callable[..., Any], operands: tuple[Any, ...]) -> list[Any]:
    torch._dynamo.reset()
    return list(torch.utils._pytree.tree_leaves(torch.compile(function, backend=cuts_backend)(*operands)))


def check(function: Callable[..., Any], operands: tuple[Any, ...]) -> None:
    wanted = torch.utils._pytree.tree_leaves(function(*operands))
    for ours, theirs in zip(run_compiled(function, operands), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, equal_nan=True)


@needs_opencl
@pytest.mark.parametrize("name", EMPTY_CASES)
def test_sizes_of_zero_agree_with_eager(name: str) -> None:
    check(*EMPTY_CASES[name])


@needs_opencl
@pytest.mark.parametrize("name", NUMBER_CASES)
def test_tensors_without_axes_agree_with_eager(name: str) -> None:
    check(*NUMBER_CASES[name])


@needs_opencl
@pytest.mark.parametrize("name", REFUSED_CALLS)
def test_eager_errors_stay_errors(name: str) -> None:
    with pytest.raises(RuntimeError) as eager:
        REFUSED_CALLS[name][0](*REFUSED_CALLS[name][1])
    with pytest.raises(RuntimeError, match=re.escape(str(eager.value)[:40])):
        run_compiled(*REFUSED_CALLS[name])


@needs_opencl
def test_negative_fill_wraps_in_unsigned_types() -> None:
    check(lambda a: (torch.full_like(a, -5), a.new_full((2,), -5), torch.fill(a, -5), a.scatter(0, i(0), -5)), (BYTES,))
