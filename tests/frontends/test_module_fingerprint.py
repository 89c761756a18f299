"""Module fingerprints: plans that a later process finds, or must not."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile import cached_build as tuned
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.dynamo_backend import autograd, dynamo
from cuts.frontends.torch.dynamo_backend.frozen import FrozenWarning
from cuts.frontends.torch.dynamo_backend.module_fingerprint import module_fingerprint
from cuts.tests.needs import needs_opencl

nn = torch.nn
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
]


@pytest.fixture(autouse=True)
def _afresh(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep every plan, in a folder of the test's own."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tuned, "MIN_CACHED_BUILD_SECONDS", 0.0)
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


@pytest.fixture
def traced_modules(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the modules that autograd traces."""
    seen: list[Any] = []
    through = autograd.apply_autograd

    def record(module: Any, *given: Any) -> Any:
        seen.append(module)
        return through(module, *given)

    for place in (autograd, dynamo):
        monkeypatch.setattr(place, "apply_autograd", record)
    return seen


def net() -> Any:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval()


def anew(model: Any, **options: Any) -> Any:
    """Compile as a later process does."""
    torch._dynamo.reset()
    return torch.compile(model, backend=cuts_backend, options=options, fullgraph=True, dynamic=False)


def near(found: Any, expected: Any) -> bool:
    return bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-5))


@needs_opencl
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
def test_a_later_process_needs_no_autograd(mode: Any, options: dict[str, Any], traced_modules: list[Any]) -> None:
    model, x = net(), torch.randn(1, 2, 6, 6)
    with mode():
        first = anew(model, **options)(x)
        assert len(traced_modules) == 1
        call = anew(model, **options)
        assert torch.equal(call(x), first) and len(traced_modules) == 1
        other = torch.randn(1, 2, 6, 6)
        assert near(call(other), model(other))


@needs_opencl
@pytest.mark.parametrize("options", [{}, {"freeze": True}], ids=["held", "frozen"])
def test_nor_does_one_with_recurrent_layers(options: dict[str, Any], traced_modules: list[Any]) -> None:
    model, x = nn.LSTM(4, 3, 2, bidirectional=True).eval(), torch.randn(2, 1, 4)
    with torch.no_grad():
        first = anew(model, **options)(x)[0]
        again, other = anew(model, **options), torch.randn(2, 1, 4)
        assert torch.equal(again(x)[0], first) and near(again(other)[0], model(other)[0]) and len(traced_modules) == 1
        model.weight_ih_l0.mul_(2)
        assert near(again(x)[0], model(x)[0]), "what frozen parameters were is kept no longer"


@needs_opencl
def test_other_parameters_are_read_and_never_remembered(traced_modules: list[Any]) -> None:
    """Read current parameters.

    Parameters are inputs of a cached plan; constants are part of the fingerprint.
    """
    x = torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        anew(net())(x)
        model = net()
        assert near(anew(model)(x), model(x)) and len(traced_modules) == 1
        anew(model, freeze=True)(x)
        model[0].weight.mul_(2)
        seen = len(traced_modules)
        assert near(anew(model, freeze=True)(x), model(x)) and len(traced_modules) == seen + 1


@needs_opencl
def test_a_plan_found_again_notices_what_changed(traced_modules: list[Any]) -> None:
    model, x = net(), torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        anew(model, freeze=True)(x)
        call = anew(model, freeze=True)
        call(x)
        assert len(traced_modules) == 1
        for _ in range(2):
            model[0].weight.mul_(1.5)
            with pytest.warns(FrozenWarning):
                assert near(call(x), model(x))
        assert len(traced_modules) == 2  # once, when it was needed


@needs_opencl
@pytest.mark.parametrize(
    ("model", "traces"),
    [
        (lambda x: x.add_(1) * 2, 1),
        (lambda x: (x * 2, x.view(-1)), 2),
        (lambda x: x[1:].copy_(x[:-1].clone()).sum() + x.sum(), 1),
    ],
    ids=["written", "view", "written part"],
)
def test_only_views_of_inputs_keep_autograd(model: Callable[..., Any], traces: int, traced_modules: list[Any]) -> None:
    for count in (1, 2):
        ours, theirs = (torch.arange(6.0).view(3, 2) for _ in range(2))
        with torch.no_grad():
            found, wanted = anew(model)(ours), model(theirs)
        pairs = zip(found, wanted, strict=True) if isinstance(wanted, tuple) else [(found, wanted)]
        assert all(near(a, b) for a, b in pairs) and near(ours, theirs) and len(traced_modules) == min(count, traces)
        if isinstance(wanted, tuple):
            assert found[1].data_ptr() == ours.data_ptr()


@needs_opencl
def test_gradients_are_wanted_now_and_not_then(traced_modules: list[Any]) -> None:
    model, x = net(), torch.randn(1, 2, 6, 6)
    with torch.no_grad():
        anew(model)(x)
    anew(model)(x).sum().backward()
    assert len(traced_modules) == 2 and model[0].weight.grad.abs().sum() > 0


# ---- fingerprints


def fingerprint_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the fingerprint of a function as Dynamo captures it."""
    found: list[Any] = []

    def note(module: Any, examples: Any) -> Any:
        found.append(module_fingerprint(module, examples, (), {}))
        return module.forward

    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(function, backend=note, fullgraph=True, dynamic=False)(*arguments)
    return found[0]


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("one", "other", "given", "instead"),
    [
        (lambda x: x + 1, lambda x: x + 1.0, X, X),
        (lambda x: x + 1, lambda x: x + 1, X, torch.ones(4, 2)),
        (lambda x: x + 1, lambda x: x + 1, X, torch.ones(4, 2).t()),
        (lambda x: x + 1, lambda x: x + 1, X, X.double()),
        (lambda x: x.sum(0), lambda x: x.sum(1), X, X),
        (lambda x: x[1:] + x[:1], lambda x: x[:1] + x[1:], X, X),
        (lambda x: torch.maximum(x, x * 2), lambda x: torch.minimum(x, x * 2), X, X),
        (lambda x: nn.functional.max_pool1d(x, 2), lambda x: nn.functional.avg_pool1d(x, 2), X, X),
        (lambda x: x - x * 2, lambda x: x * 2 - x, X, X),
    ],
)
def test_what_differs_has_other_words(one: Any, other: Any, given: Any, instead: Any) -> None:
    first, second = fingerprint_of(one, given), fingerprint_of(other, instead)
    assert first and second and first != second
    assert fingerprint_of(one, given) == first


def test_settings_are_part_of_the_words() -> None:
    def product(x: Any) -> Any:
        return x @ x.t()

    plain = fingerprint_of(product, X)
    with torch.autocast("cpu", torch.bfloat16):
        assert fingerprint_of(product, X) != plain


def test_users_operator_has_no_fingerprint() -> None:
    with torch.library._scoped_library("cuts_told", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("cuts_told::twice", torch.empty_like, lib=library)
        assert fingerprint_of(lambda x: torch.ops.cuts_told.twice(x) + 1, X) is None


def test_undescribable_parts_have_no_fingerprint() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(operator.add, (x, 1)))
    module = torch.fx.GraphModule({}, graph)
    assert module_fingerprint(module, [X], (), {}) is not None
    (node,) = (node for node in graph.nodes if node.op == "call_function")
    node.target = lambda a, b: a - b
    assert module_fingerprint(module, [X], (), {}) is None
    node.target, node.args = operator.add, (x, object())
    assert module_fingerprint(module, [X], (), {}) is None
