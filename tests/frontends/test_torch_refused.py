"""Rare operations compile, or PyTorch runs them and one warning names them.

`docs/frontends.md` lists the operations that stay in PyTorch.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch import UncompiledWarning
from cuts.tests.needs import needs_opencl

from ..needs import optional_module

F = torch.nn.functional
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("dynamo_afresh")]
CHANCE = torch.Generator().manual_seed(0)


def x(*shape: int) -> Any:
    return torch.randn(shape, generator=CHANCE)


def i(*shape: int, below: int = 9) -> Any:
    return torch.randint(0, below, shape, generator=CHANCE)


def square(size: int = 4) -> Any:
    """Return a positive definite matrix."""
    a = x(size, size)
    return a @ a.T + size * torch.eye(size)


def pair(*shape: int) -> Any:
    return torch.complex(x(*shape), x(*shape))


def vision(name: str) -> Any:
    """Return a function of `torchvision.ops`, which is optional."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(torchvision.ops, name)(*arguments, **options)

    torchvision = optional_module("torchvision")
    return call if torchvision is not None else None


def _while(a: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(lambda n, v: n < 3, lambda n, v: (n + 1, v * 2), (torch.tensor(0), a))


def _map(a: Any) -> Any:
    from torch._higher_order_ops.map import map as map_over

    return map_over(lambda row, other: row.exp() + other, a, a[0].clone())


def _flex(q: Any, k: Any, v: Any) -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return flex_attention(q, k, v, score_mod=lambda score, b, h, m, n: score + (m - n))


def _quantise(a: Any) -> Any:
    import torch.ao.quantization.fx._decomposed  # registers the operations

    q = torch.ops.quantized_decomposed.quantize_per_tensor(a.exp(), 0.1, 3, 0, 255, torch.uint8)
    return torch.ops.quantized_decomposed.dequantize_per_tensor(q, 0.1, 3, 0, 255, torch.uint8).relu()


def _bag_weights(a: Any, places: Any, weights: Any) -> Any:
    return F.embedding_bag(places, a, torch.tensor([0, 3]), mode="sum", per_sample_weights=weights)


def _renormalise(a: Any) -> Any:
    return torch.embedding_renorm_(a * 2, torch.tensor([1, 2]), 1.0, 2.0)


def _projected_lstm() -> Any:
    torch.manual_seed(0)
    return torch.nn.LSTM(5, 6, proj_size=3)


BYTES = torch.randint(0, 255, (1, 2, 4, 4), generator=CHANCE, dtype=torch.uint8)
CASES: dict[str, tuple[Any, ...]] = {
    "_int_mm": (lambda a, b: torch._int_mm(a, b) * 2, (i(17, 16).to(torch.int8), i(16, 8).to(torch.int8))),
    "_grouped_mm": (lambda a, b, o: torch._grouped_mm(a, b, offs=o).relu(),
                    (x(16, 16).bfloat16(), x(2, 16, 8).bfloat16(), torch.tensor([8, 16], dtype=torch.int32))),
    "flex_attention": (_flex, (x(1, 2, 8, 16), x(1, 2, 8, 16), x(1, 2, 8, 16))),
    "attention of five axes": (F.scaled_dot_product_attention, (x(2, 1, 2, 4, 8),) * 3),
    "nms": (vision("nms"), (x(6, 4).abs().cumsum(1), x(6), 0.5)),
    "roi_align": (vision("roi_align"), (x(1, 2, 8, 8), [x(3, 4).abs().cumsum(1)], 2)),
    "deform_conv2d": (vision("deform_conv2d"), (x(1, 2, 6, 6), x(1, 18, 4, 4), x(3, 2, 3, 3))),
    "inv": (lambda a: torch.linalg.inv(a) + 1, (square(),)),
    "cholesky": (lambda a: torch.linalg.cholesky(a) + 1, (square(),)),
    "solve_triangular": (lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False) + 1, (square(), x(4, 2))),
    "svd": (lambda a: torch.linalg.svdvals(a) + 1, (x(4, 3),)),
    "svd, vectors": (lambda a: torch.linalg.svd(a.exp())[1] + 1, (x(4, 3),)),
    "qr": (lambda a: torch.linalg.qr(a.exp())[1].abs() + 1, (x(4, 3),)),
    "det": (lambda a: torch.linalg.det(a) + 1, (square(),)),
    "slogdet": (lambda a: torch.linalg.slogdet(a).logabsdet + 1, (square(),)),
    "eigh": (lambda a: torch.linalg.eigh(a)[0] + 1, (square(),)),
    "eigvals": (lambda a: torch.linalg.eigvals(a).abs().sum() + 1, (square(),)),
    "matrix_exp": (lambda a: torch.linalg.matrix_exp(a / 9) + 1, (square(),)),
    "pinv": (lambda a: torch.linalg.pinv(a.exp()) + 1, (x(4, 3),)),
    "lstsq": (lambda a, b: torch.linalg.lstsq(a, b).solution + 1, (x(5, 3), x(5, 2))),
    "erfinv": (lambda a: torch.erfinv(a.tanh()), (x(9),)),
    "lgamma": (lambda a: torch.lgamma(a), (x(9),)),
    "digamma": (lambda a: torch.digamma(a), (x(9),)),
    "polygamma": (lambda a: torch.polygamma(2, a.abs() + 1), (x(9),)),
    "i0": (lambda a: torch.i0(a), (x(9),)),
    "igamma": (lambda a: torch.igamma(a.abs() + 1, a.abs()), (x(9),)),
    "zeta": (lambda a: torch.special.zeta(a.abs() + 2, a.abs() + 1), (x(9),)),
    "bessel_j0": (lambda a: torch.special.bessel_j0(a), (x(9),)),
    "nextafter": (lambda a, b: torch.nextafter(a, b) - a, (x(9), x(9))),
    "nextafter to a number": (lambda a: torch.nextafter(a, a.new_zeros(())) == a, (x(9),)),
    "nextafter, doubles": (torch.nextafter, (x(9).double(), x(9).double())),
    "frexp": (lambda a: torch.frexp(a.exp()), (x(9),)),
    "ldexp": (lambda a, n: torch.ldexp(a, n), (x(9), i(9))),
    "mode": (lambda a: torch.mode(a + 1), (i(3, 9, below=3).float(),)),
    "nanmedian": (lambda a: torch.nanmedian(torch.where(a > 1, torch.nan, a), 1), (x(3, 9),)),
    "nanmedian of all": (lambda a: torch.nanmedian(a) + 1, (x(3, 9),)),
    "segment_reduce": (lambda a, n: torch.segment_reduce(a, "sum", lengths=n, unsafe=True),
                       (x(9), torch.tensor([4, 5]))),
    "fractional_max_pool2d": (lambda a, s: F.fractional_max_pool2d(a, 2, output_size=3, _random_samples=s),
                              (x(1, 2, 7, 7), torch.rand(1, 2, 2))),
    "repeat_interleave(tensor)": (lambda a, n: torch.repeat_interleave(a.exp(), n, 0, output_size=6),
                                  (x(3, 4), torch.tensor([1, 2, 3]))),
    "repeat_interleave, length unknown": (lambda a, n: torch.repeat_interleave(a.exp(), n, 0).relu(),
                                          (x(3, 4), torch.tensor([1, 2, 3]))),
    "addbmm": (lambda a, b, c: torch.addbmm(a, b, c, beta=2), (x(3, 5), x(2, 3, 4), x(2, 4, 5))),
    "cdist": (lambda a, b: torch.cdist(a, b, p=3.0), (x(4, 3), x(5, 3)), True),
    "embedding_bag, sample weights": (_bag_weights, (x(9, 4), i(6), x(6)), True),
    "embedding, scaled gradient": (lambda a: F.embedding(torch.tensor([[1, 1, 2]]), a, scale_grad_by_freq=True).exp(),
                                   (x(5, 4),), True),
    "avg_pool2d, divisor": (lambda a: F.avg_pool2d(a, 3, 2, 1, divisor_override=5), (x(1, 2, 7, 7),), True),
    "view(dtype)": (lambda a: a.exp().view(torch.int32) + 1, (x(3, 4),)),
    **{f"view({kind}) of {given.dtype}": (lambda a, k=kind: (a * 2).view(k) * 1, (given,))
       for given in (x(3, 8), x(3, 8).double(), i(3, 8), i(3, 8).to(torch.int8), i(3, 8).to(torch.uint8) + 99,
                     -i(3, 8).to(torch.int16), (i(3, 8) + 1070000000).int())
       for kind in (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)},
    "view(dtype) of half types": (lambda a: (a * 2).half().view(torch.int16) * 1, (x(3, 4),)),
    "as_strided of a permuted tensor": (lambda a: (a * 2).t().as_strided((3, 2), (2, 1)).exp(), (x(6, 4),), True),
    "while_loop": (_while, (x(3, 4),)),
    "map": (_map, (x(3, 4),)),
    **{f"complex {name}": (lambda a, b, n=name: torch.view_as_real(getattr(torch, n)(torch.complex(a, b))) + 1,
                           (x(3, 4), x(3, 4)))
       for name in ("sin", "cos", "sinh", "cosh", "tan", "sqrt", "log", "exp", "tanh", "prod", "reciprocal", "square",
                    "sum", "mean")},
    **{f"complex products of {size}": (lambda a, b: torch.view_as_real(torch.complex(a, b).prod(1, keepdim=True)),
                                       (x(3, size), x(3, size))) for size in (1, 2, 3, 7)},
    "complex cumsum": (lambda a, b: torch.view_as_real(torch.complex(a, b).cumsum(1)) + 1, (x(3, 4), x(3, 4))),
    **{f"complex {name}": (lambda a, b, n=name: getattr(torch, n)(torch.complex(a, b)) + 1, (x(3, 4), x(3, 4)))
       for name in ("angle", "abs", "isnan")},
    "complex results": (lambda a, b: torch.complex(a, b) * 2, (x(3, 4), x(3, 4))),
    "complex inputs": (lambda a: (a * 2).abs(), (pair(3, 4),)),
    "complex power": (lambda a: (a**2).real, (pair(3, 4),)),
    "complex quotient": (lambda a, b: torch.view_as_real(a / b), (pair(3, 4), pair(3, 4))),
    "gcd": (lambda a, b: torch.gcd(a, b), (i(9), i(9))),
    "lcm": (lambda a, b: torch.lcm(a, b), (i(9), i(9))),
    "embedding_renorm": (_renormalise, (x(4, 3),)),
    "embedding, max_norm": (lambda a: F.embedding(torch.tensor([1, 2]), a * 2, max_norm=1.0), (x(4, 3),)),
    "projected LSTM states": (_projected_lstm(), (x(4, 2, 5),)),
    **{f"interpolation of bytes, {how}": (lambda a, h=how: F.interpolate(a, scale_factor=2, mode=h) + 1, (BYTES,))
       for how in ("nearest", "bilinear", "bicubic", "nearest-exact")},
    "randint": (lambda a: torch.randint(0, 9, (3, 4)) + a, (x(3, 4),)),
    "bernoulli": (lambda a: torch.bernoulli(a.sigmoid()) + a, (x(3, 4),)),
    "multinomial": (lambda a: torch.multinomial(a.sigmoid(), 2) + 1, (x(3, 4),)),
    "rand": (lambda a: torch.rand(3, 4) + a, (x(3, 4),)),
    "randperm": (lambda a: torch.randperm(4) + a, (x(3, 4),)),
    "normal": (lambda a: torch.normal(a, 1.0) + a, (x(3, 4),)),
    "uint16": (lambda a: (a.to(torch.uint16).to(torch.int32) * 2).exp(), (i(3, 4),)),
    "uint16 input": (lambda a: a.to(torch.int32) * 2, (i(3, 4).to(torch.uint16),)),
    "float8": (lambda a: (a * 2).to(torch.float8_e4m3fn).to(torch.float32) + 1, (x(3, 4),)),
    "float8 input": (lambda a: a.to(torch.float32) + 1, (x(3, 4).to(torch.float8_e5m2),)),
    "quantized_decomposed": (_quantise, (x(3, 4),)),
    "nonzero": (lambda a: torch.nonzero(a.relu()) * 2, (x(3, 4),)),
    "unique": (lambda a: torch.unique(a + 1) * 2, (i(9),)),
    "unique_consecutive": (lambda a: torch.unique_consecutive(a + 1) * 2, (i(9),)),
    "masked_select": (lambda a: torch.masked_select(a.exp(), a > 0).relu(), (x(3, 4),)),
    "selection by a mask": (lambda a: a.exp()[a > 0].relu(), (x(3, 4),)),
    "bincount": (lambda a: torch.bincount(a + 1) * 2, (i(9),)),
    "item": (lambda a: a.exp() * a.sum().item(), (x(3, 4),)),
    "tolist": (lambda n, a: a.exp().split(n.tolist())[0] * 2, (torch.tensor([1, 2]), x(3, 4))),
    "histogram": (lambda a: torch.histogram(a.tanh(), 4, range=(-1.0, 1.0))[0] + 1, (x(9),)),
    "bucketize": (lambda a: torch.bucketize(a, torch.tensor([-1.0, 0.0, 1.0])), (x(9),)),
    "cross": (lambda a, b: torch.linalg.cross(a, b), (x(4, 3), x(4, 3))),
    "ctc_loss": (lambda a, t: F.ctc_loss(a.log_softmax(-1), t, torch.tensor([6, 6]), torch.tensor([2, 2])),
                 (x(6, 2, 5), i(2, 2, below=4) + 1)),
    "logcumsumexp": (lambda a: torch.logcumsumexp(a, 1), (x(3, 4),), True),
    "renorm": (lambda a: torch.renorm(a, 2, 0, 1.0), (x(3, 4),)),
    "quantile": (lambda a: torch.quantile(a, 0.3, dim=1), (x(3, 4),)),
    "istft": (lambda a, w: torch.istft(torch.stft(a, 8, return_complex=True, window=w), 8, window=w),
              (x(2, 32), torch.ones(8))),
    "sparse": (lambda a, b: torch.sparse.mm(a.to_sparse(), b) + 1, (x(3, 4), x(4, 2))),
    "nested writes": (lambda a: a.clone().index_put_((torch.tensor([0, 0]),), a[1], accumulate=True), (x(3, 4),)),
    "max_unpool2d": (lambda a: F.max_unpool2d(*F.max_pool2d(a, 2, return_indices=True), 2), (x(1, 2, 4, 4),)),
    "adaptive_max_pool2d": (lambda a: F.adaptive_max_pool2d(a, (3, 2)), (x(1, 2, 7, 7),), True),
    "gumbel_softmax": (lambda a: F.gumbel_softmax(a), (x(3, 4),)),
    "rrelu": (lambda a: F.rrelu(a, training=True), (x(3, 4),)),
    "pdist": (lambda a: F.pdist(a), (x(4, 3),), True),
}  # fmt: skip

#: Cases that stay in PyTorch, and the operation or element type that their warning names.
IN_PYTORCH = {
    "flex_attention": "flex_attention", "while_loop": "while_loop", "map": "map_impl",
    "svd": "aten._linalg_svd", "svd, vectors": "aten._linalg_svd", "qr": "aten.linalg_qr",
    "eigh": "aten._linalg_eigh", "eigvals": "aten.linalg_eig", "matrix_exp": "aten.linalg_matrix_exp",
    "pinv": "aten.linalg_pinv", "igamma": "aten.igamma", "zeta": "aten.special_zeta",
    "bessel_j0": "aten.special_bessel_j0",
    "view(dtype) of half types": "aten.view.dtype",
    "projected LSTM states": "proj_size", "interpolation of bytes, bilinear": "aten.upsample_bilinear2d",
    "interpolation of bytes, bicubic": "aten.upsample_bicubic2d", "multinomial": "aten.multinomial",
    "normal": "aten.normal", "uint16": "torch.uint16", "uint16 input": "torch.uint16",
    "histogram": "aten.histogram",
    "rrelu": "aten.rrelu_with_noise_functional",
}  # fmt: skip

#: Cases that have a gradient in eager, besides those that ask for it.
GRADIENTS = (
    "_grouped_mm", "attention of five axes", "inv", "cholesky", "solve_triangular", "svd", "svd, vectors", "qr", "det",
    "slogdet", "eigh", "eigvals", "matrix_exp", "pinv", "lstsq", "erfinv", "lgamma", "digamma", "polygamma", "i0",
    "frexp", "ldexp", "mode", "nanmedian", "nanmedian of all", "segment_reduce", "repeat_interleave(tensor)",
    "repeat_interleave, length unknown", "addbmm", "map",
    *(name for name in CASES if name.startswith("complex ") and len(name.split()) == 2 and name[8:] not in
      ("results", "inputs", "power", "quotient", "isnan", "prod")),
    *(f"complex products of {size}" for size in (1, 2, 3, 7)), "embedding, max_norm", "projected LSTM states",
    "randint", "bernoulli", "rand", "normal", "float8", "masked_select", "selection by a mask", "item", "tolist",
    "cross", "ctc_loss", "renorm", "quantile", "istft", "sparse", "nested writes", "max_unpool2d", "gumbel_softmax",
    "rrelu",
)  # fmt: skip
#: Functions of a positive definite matrix, each a matrix.
MATRIX_FUNCTIONS: dict[str, Any] = {
    "inv": torch.linalg.inv,
    "cholesky": torch.linalg.cholesky,
    "pinv": torch.linalg.pinv,
    "solve_triangular": lambda a: torch.linalg.solve_triangular(a.tril(), torch.eye(16), upper=False),
    "svd": lambda a: torch.linalg.svd(a)[1].diag(),
    "qr": lambda a: torch.linalg.qr(a)[1],
    "det": lambda a: a / torch.linalg.det(a / 3),
    "eigh": lambda a: torch.linalg.eigh(a)[0].diag(),
    "matrix_exp": lambda a: torch.linalg.matrix_exp(a / 9),
    "solve": lambda a: torch.linalg.solve(a, a.exp().sin()),
    "lu": lambda a: torch.linalg.lu(a)[1],
    "cholesky_inverse": torch.cholesky_inverse,
    "matrix_power": lambda a: torch.linalg.matrix_power(a / 4, 3),
}


def _leaves(value: Any) -> Iterator[Any]:
    return iter(torch.utils._pytree.tree_leaves(value))


def _run(function: Any, arguments: tuple[Any, ...], backward: bool) -> list[Any]:
    """Return results, and gradients where asked for."""
    given = [
        a.clone().requires_grad_(backward and a.dtype.is_floating_point) if isinstance(a, torch.Tensor) else a
        for a in arguments
    ]
    torch.manual_seed(3)
    found = list(_leaves(function(*given)))
    if backward:
        sum((r.exp().sum() for r in found if r.requires_grad), torch.zeros(())).backward()
        found += [a.grad for a in given if isinstance(a, torch.Tensor) and a.requires_grad]
    return [r.detach() if isinstance(r, torch.Tensor) else r for r in found]


def run_case(function: Any, arguments: tuple[Any, ...], backward: bool = False) -> list[str]:
    """Run a function, compare with eager, and return the texts of warnings."""
    with torch.set_grad_enabled(backward), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        expected = _run(function, arguments, backward)
        found = _run(torch.compile(function, backend=cuts_backend), arguments, backward)
    assert len(found) == len(expected)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert not isinstance(two, torch.Tensor) or one.stride() == two.stride()
    return [str(each.message) for each in caught if each.category is UncompiledWarning]


@needs_opencl
@pytest.mark.parametrize("name", CASES)
def test_an_operation_compiles_or_stays(name: str) -> None:
    _check_warnings(name, CASES[name])


@needs_opencl
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_gradient_compiles_or_stays(name: str) -> None:
    _check_warnings(name, (*CASES[name][:2], True))


def _check_warnings(name: str, case: tuple[Any, ...]) -> None:
    if case[0] is None:
        pytest.skip("torchvision is not installed")
    texts = run_case(*case)
    assert bool(texts) == (name in IN_PYTORCH), texts
    assert len(texts) <= 1 + (len(case) > 2), texts
    assert IN_PYTORCH.get(name, "") in " ".join(texts)


def _layers(function: Any) -> Any:
    """Return a model around an operation on a positive definite matrix."""

    def model(a: Any, w: Any) -> Any:
        b = torch.relu(a @ w)
        found = function(b @ b.T / 8 + 2 * torch.eye(16))
        return torch.relu(found @ w.T + 1).softmax(-1)

    return model


@needs_opencl
@pytest.mark.parametrize("name", MATRIX_FUNCTIONS)
def test_models_compile_around_matrix_functions(name: str) -> None:
    texts = run_case(_layers(MATRIX_FUNCTIONS[name]), (x(16, 12), x(12, 16) / 4), True)
    assert bool(texts) == (name in IN_PYTORCH), texts
    assert all("compiled part" in text and text.count(" of a captured graph") == 1 for text in texts), texts


def test_the_document_lists_operations_in_pytorch() -> None:
    text = (Path(__file__).parents[2] / "docs" / "frontends.md").read_text(encoding="utf-8")
    table = text.partition("### Calls that stay in PyTorch")[2].partition("\n## ")[0]
    assert set(re.findall(r"`([\w.]+)`", table)) == set(IN_PYTORCH.values())
