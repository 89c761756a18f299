"""PyTorch's precision settings: autocast, and precision of f32 products."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.backends.devices import find_target
from cuts.compile import torch_backend
from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning
from cuts.ir import CompileOptions, CutsWarning, precisions_of
from cuts.ir.compiled import BudgetShares
from cuts.ir.errors import UsageError
from cuts.ir.types import DType
from cuts.numerics.comparison import magnitude, relative_error
from cuts.numerics.tolerance import tolerance
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
nn = torch.nn
HALVES = {torch.bfloat16: DType.BF16, torch.float16: DType.F16}


class Attended(nn.Module):
    """A layer of a transformer, its norms first."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.mixed, self.joined = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x: Any) -> Any:
        heads = (v.unflatten(-1, (2, 8)).transpose(1, 2) for v in self.mixed(self.norms[0](x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(*heads)
        x = x + self.joined(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


class Inside(nn.Module):
    """A module that asks for autocast in the middle of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = self.first(x).relu()
        return self.last(y.float() + 1)


def convolutions() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.GroupNorm(2, 8),
        nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5), nn.Softmax(-1),
    )  # fmt: skip


def dense() -> Any:
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 8), nn.LogSoftmax(-1))


#: Networks, and how many roundings are on the longest way through each: two or three for each operation.
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...], int]] = {
    "dense": (dense, (6, 16), 14),
    "convolutions": (convolutions, (2, 3, 7, 7), 24),
    "transformer": (Attended, (2, 5, 16), 40),
    "inside": (Inside, (6, 16), 8),
}


@pytest.fixture(autouse=True)
def settings() -> Iterator[None]:
    """Restore PyTorch's settings, and reset Dynamo."""
    before = torch.get_float32_matmul_precision()
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch.set_float32_matmul_precision(before)


def make_network(name: str) -> tuple[Any, Any, int]:
    make, shape, roundings = NETWORKS[name]
    return make().eval(), torch.randn(shape), roundings


def near(found: Any, exact: Any, stored: DType, roundings: int) -> None:
    """Assert that results are within rounding of those in f64."""
    got, want = found.detach().double().numpy(), exact.detach().numpy()
    error = relative_error(got, want, magnitude(want))
    assert error.max() <= tolerance(DType.F32, 64, roundings, stored)


@needs_opencl
@pytest.mark.parametrize("kind", HALVES, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_under_autocast_compile_correctly(name: str, kind: Any) -> None:
    module, x, roundings = make_network(name)
    compiled = torch.compile(module, backend=torch_backend.cuts_backend)
    with torch.no_grad(), torch.autocast("cpu", dtype=kind), warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        expected, found = module(x), compiled(x)
    assert found.dtype is expected.dtype
    with torch.no_grad():
        exact = module.double()(x.double()) if name != "inside" else inside_in_double(module, x)
    near(found, exact, DType.BF16 if name == "inside" else HALVES[kind], roundings)


def inside_in_double(module: Any, x: Any) -> Any:
    """Compute `Inside` without its autocast."""
    module = module.double()
    return module.last(module.first(x.double()).relu() + 1)


@needs_opencl
def test_gradients_under_autocast_are_those_of_pytorch() -> None:
    """Batch statistics, and a loss that autocast computes in f32."""
    stack = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(200, 5))
    x, wanted = torch.randn(4, 3, 7, 7), torch.tensor([0, 3, 1, 4])

    def step(module: Any, kind: Any, x: Any) -> list[Any]:
        stack.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind is not torch.float64):
            loss = nn.functional.cross_entropy(module(x).to(kind), wanted)
        loss.backward()
        return [loss, *(p.grad for p in stack.parameters())]

    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledWarning)
        found = [
            v.detach().clone() for v in step(torch.compile(stack, backend=torch_backend.cuts_backend), torch.float32, x)
        ]
    stack.double()
    for got, exact in zip(found, step(stack, torch.float64, x.double()), strict=True):
        # The bias before a batch norm changes nothing: its gradient is rounding alone.
        if float(exact.detach().abs().max()) > 1e-6:
            near(got, exact, DType.BF16, 16)


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Return the policies of compilations, in order; no plan is cached."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    found: list[str] = []
    build = torch_backend.build_cached

    def noting(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        found.append(options.precision)
        return build(graph, spec, target, options, **tuning)

    monkeypatch.setattr(torch_backend, "build_cached", noting)
    return found


@needs_opencl
def test_products_of_f32_are_as_pytorch_allows_them(policies: list[str]) -> None:
    module, x, roundings = make_network("dense")
    compiled = torch.compile(module, backend=torch_backend.cuts_backend)
    with torch.no_grad():
        for setting in ("highest", "medium", "high", "medium"):
            torch.set_float32_matmul_precision(setting)
            found = compiled(x)
            assert found.dtype is torch.float32
            stored = DType.BF16 if setting == "medium" else DType.F32
            near(found, module.double()(x.double()), stored, roundings)
            module.float()
    assert set(policies) == {"fp32", "bf16"}  # no target here multiplies TF32


@needs_opencl
def test_a_precision_that_was_asked_for_is_kept(policies: list[str]) -> None:
    module, x, roundings = make_network("dense")
    torch.set_float32_matmul_precision("medium")
    compiled = torch.compile(module, backend=torch_backend.cuts_backend, options={"precision": "fp16"})
    with torch.no_grad():
        near(compiled(x), module.double()(x.double()), DType.F16, roundings)
    assert policies == ["fp16"]


def test_a_gpu_with_matrix_instructions_follows_every_word(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    elapsed: list[float] = []

    def build(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        found.append(options.precision)
        elapsed.append(options.begin().elapsed)
        return SimpleNamespace(precision=options.precision, cache_name="", plan=None, cubins=())

    monkeypatch.setattr(torch_backend, "build_cached", build)
    monkeypatch.setattr(torch_backend, "target_of", lambda device: (find_target("cuda:sm_80"), 0))
    monkeypatch.setattr(torch_backend, "program_of", lambda make_network, ordinal: make_network.precision)
    captured = SimpleNamespace(graph=None, registry=None, texts={}, is_last=True, reimport=None)
    shares = BudgetShares()
    shares.begun -= 5.0
    wishes = torch_backend._read({})
    plans = torch_backend._compile(wishes, captured, torch.device("cuda", 0), shares)  # type: ignore[arg-type]
    for setting, expected in (("high", "tf32"), ("medium", "bf16"), ("highest", "fp32"), ("high", "tf32")):
        torch.set_float32_matmul_precision(setting)
        assert plans.choose() == expected
    assert found == ["fp32", "tf32", "bf16"]
    first, *later = elapsed
    assert first >= 5.0 > max(later), "tracing the graph counts, once"
    assert precisions_of(find_target("opencl")) == ("fp32", "bf16", "fp16")
    assert precisions_of(find_target("cuda:t4")) == ("fp32", "bf16", "fp16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "unknown precision 'fp8'; precisions are: fp32, fp32x3, tf32, bf16, fp16"),
        (
            {"speed": 1},
            "unknown option 'speed'; options are: precision, budget, tune, libraries, freeze, weights, deterministic, "
            "policy, pruning, top, max_shapes, buckets, memory",
        ),
        ({"budget": -1}, "option 'budget': expected seconds, found -1"),
        ({"budget": "long"}, "option 'budget': expected seconds, found 'long'"),
        ({"budget": float("inf")}, "option 'budget': expected seconds, found inf"),
        ({"freeze": "no"}, "option 'freeze': expected True or False, found 'no'"),
        ({"tune": 1}, "option 'tune': expected True or False, found 1"),
        ({"memory": 2}, "option 'memory': expected a number from 0 to 1, found 2"),
        ({"max_shapes": 0}, "option 'max_shapes': expected an integer from 1, found 0"),
        ({"libraries": True}, "option 'libraries': nothing is timed; give a budget too, or tune=True"),
    ],
)
def test_options_that_there_are_not_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        torch_backend.cuts_backend(None, (), options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("fastest", None, "unknown mode 'fastest'; modes are: default, reduce-overhead, max-autotune, "
         "max-autotune-no-cudagraphs"),
        (3, None, "unknown mode '3'; modes are: default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs"),
        ("max-autotune", {"freeze": True}, "mode 'max-autotune' and options freeze: expected one of them; leave the "
         "mode out; option 'budget' sets seconds for timing candidates"),
    ],
)  # fmt: skip
def test_modes_that_there_are_not_are_refused(mode: Any, options: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        torch_backend.cuts_backend(None, (), options, mode)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("mode", "budget"),
    [
        (None, None),
        ("default", None),
        ("reduce-overhead", None),
        ("max-autotune", 60),
        ("max-autotune-no-cudagraphs", 60),
    ],
)
@pytest.mark.parametrize("dynamic", [None, False, True])
def test_a_mode_is_a_budget(
    mode: str | None, budget: float | None, dynamic: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    build = torch_backend.build_cached

    def note(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        found.append((options.budget, tuning["tune"]))
        return build(graph, spec, target, CompileOptions(precision=options.precision))

    monkeypatch.setattr(torch_backend, "build_cached", note)
    monkeypatch.setattr(torch_backend, "find_signature", lambda key: None)
    torch._dynamo.reset()
    model, x = torch.nn.Linear(4, 3).eval(), torch.randn(2, 4)
    call = torch.compile(model, backend=torch_backend.cuts_backend, mode=mode, dynamic=dynamic, fullgraph=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CutsWarning)
        assert torch.allclose(call(x), model(x), atol=1e-5)
    assert found == [(budget, budget is not None)]


def test_a_mode_without_effect_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "_REPORTED_MODES", set())
    with pytest.warns(CutsWarning, match="mode 'reduce-overhead': a plan is one launch in every mode") as caught:
        found = [torch_backend._options_of(None, "reduce-overhead") for _ in range(2)]
    assert found == [{}, {}] and len(caught) == 1


def test_a_budget_and_libraries_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    def build(graph: Any, spec: Any, target: Any, options: Any, **tuning: Any) -> Any:
        found.append((options.budget, tuning))
        return SimpleNamespace(cache_name="", plan=None, cubins=())

    monkeypatch.setattr(torch_backend, "build_cached", build)
    monkeypatch.setattr(torch_backend, "program_of", lambda make_network, ordinal: make_network)
    captured = SimpleNamespace(graph=None, registry=None, texts={}, is_last=True, reimport=None)
    for options in ({}, {"tune": True}, {"budget": 60, "libraries": True}):
        torch_backend._compile(torch_backend._read(options), captured, torch.device("cpu"))  # type: ignore[arg-type]
    assert found == [
        (None, {"tune": False, "libraries": False}),
        (None, {"tune": True, "libraries": False}),
        (60, {"tune": True, "libraries": True}),
    ]
