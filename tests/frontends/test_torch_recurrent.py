"""Recurrent layers under torch.compile.

Dynamo captures them for this backend alone; they become ours, and train.
"""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.bench.networks.modules import AttentionRNN, DeepSpeech2
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.decompositions import decompose_layers
from cuts.frontends.torch.dynamo_backend import dynamo
from cuts.frontends.torch.dynamo_backend.autograd import LazyGraph
from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.tests.amounts import examples
from cuts.tests.frontends.test_torch_compiled_function import everywhere
from cuts.tests.frontends.test_torch_training import Recorder
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses import FakeTensorMode

nn = torch.nn
#: Tracing warns about PyTorch's own insides; that a graph stays in PyTorch is a failure here.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
    pytest.mark.usefixtures("dynamo_afresh"),
]
KINDS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@pytest.fixture
def imported_operations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[set[str]]:
    """Return the operations of each imported graph; no plan is cached."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    seen: list[set[str]] = []
    read = dynamo.graph_of_nodes

    def record(*arguments: Any) -> Any:
        captured = read(*arguments)
        seen.append({node.op for node in captured.graph.nodes})
        return captured

    monkeypatch.setattr(dynamo, "graph_of_nodes", record)
    return seen


class Surrounded(nn.Module):
    """Recurrent layer with layers before and after it."""

    def __init__(self, layer: Any, features: int = 4) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(features, features), layer

    def forward(self, x: Any, state: Any = None) -> tuple[Any, ...]:
        y, last = self.layer(self.first(x), state)
        return (torch.relu(y), *(last if isinstance(last, tuple) else (last,)))


def steps_and_gradients(model: Any, call: Any, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """Return a model's results, and gradients of parameters and inputs."""
    given = [_requiring_gradients(a) for a in arguments]
    model.zero_grad()
    found = call(*given)
    ways = [torch.linspace(-1, 1, v.numel(), device=v.device).view(v.shape) for v in found]
    sum((v.sin() * way).sum() for v, way in zip(found, ways, strict=True)).backward()
    tensors = [t for a in given for t in (a if isinstance(a, tuple) else (a,)) if t is not None]
    return [v.detach() for v in found], [t.grad for t in (*model.parameters(), *tensors)]


def _requiring_gradients(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_requiring_gradients, argument))
    return None if argument is None else argument.detach().clone().requires_grad_()


def assert_near(found: list[Any], expected: list[Any]) -> None:
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@st.composite
def layers(draw: st.DrawFn) -> tuple[str, Any, tuple[Any, ...]]:
    """Draw a recurrent layer, with its arguments."""
    kind = draw(st.sampled_from(sorted(KINDS)))
    flags = {name: draw(st.booleans()) for name in ("bias", "batch_first", "bidirectional")}
    number, hidden = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    more = {"nonlinearity": draw(st.sampled_from(["tanh", "relu"]))} if kind == "rnn" else {}
    layer = KINDS[kind](4, hidden, number, **flags, **more)
    steps, batch = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    states = [torch.randn(number * (1 + flags["bidirectional"]), batch, hidden) for _ in range(2)]
    state = tuple(states) if kind == "lstm" else states[0]
    x = torch.randn(batch, steps, 4) if flags["batch_first"] else torch.randn(steps, batch, 4)
    return kind, Surrounded(layer), (x, state if draw(st.booleans()) else None)


@settings(max_examples=examples(12, 200))
@given(layers())
def test_recurrent_layers_are_ours_and_learn(drawn: tuple[str, Any, tuple[Any, ...]]) -> None:
    kind, model, arguments = drawn
    torch._dynamo.reset()
    backend = Recorder("reference")
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    with torch._dynamo.config.patch(allow_rnn=True):
        with torch.no_grad():
            assert_near(list(compiled(*arguments)), list(model(*arguments)))
        expected = steps_and_gradients(model, model, *arguments)
        found = steps_and_gradients(model, compiled, *arguments)
    assert_near(found[0], expected[0])
    assert_near(found[1], expected[1])
    assert backend.ran == [0, 1, 2]
    assert kind in backend.operations(0) and any(op.startswith(kind) for op in backend.operations(1))
    assert any(op.startswith(f"{kind}_grad") for op in backend.operations(2))


@everywhere
@pytest.mark.parametrize("kind", KINDS)
def test_layers_train_on_their_device(place: str, kind: str, imported_operations: list[set[str]]) -> None:
    model, x = Surrounded(KINDS[kind](4, 3, bidirectional=True)).to(place), torch.randn(5, 2, 4, device=place)
    compiled = torch.compile(model, backend=cuts_backend, fullgraph=True, dynamic=False)
    found, expected = (steps_and_gradients(model, call, x) for call in (compiled, model))
    assert_near(found[0], expected[0])
    assert_near(found[1], expected[1])
    for operations, begin in zip(imported_operations, (f"{kind}_kept", f"{kind}_grad"), strict=True):
        assert any(op.startswith(begin) for op in operations)  # a gradient runs no step again


@everywhere
@pytest.mark.parametrize(
    ("model", "arguments"),
    [
        (lambda: DeepSpeech2(33, 8, 2), lambda: (torch.randn(2, 1, 33, 20),)),
        (lambda: AttentionRNN(20, 8, 2), lambda: (torch.randint(0, 20, (2, 5)), torch.randint(0, 20, (2, 4)))),
    ],
    ids=["deepspeech", "attention"],
)
def test_networks_are_one_graph_with_nothing_set(
    place: str, model: Any, arguments: Any, imported_operations: list[set[str]]
) -> None:
    network, given_ = model().eval().to(place), [value.to(place) for value in arguments()]
    with torch.no_grad():
        found = torch.compile(network, backend=cuts_backend, fullgraph=True)(*given_)
        assert torch.allclose(found, network(*given_), rtol=1e-4, atol=1e-5)
    assert len(imported_operations) == 1 and imported_operations[0] & set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_device_routines_do_not_take_precedence(kind: str) -> None:
    """Decompose before PyTorch's dispatcher selects cuDNN.

    Autograd's graphs contain no cuDNN call.
    """
    captured: list[tuple[Any, Any]] = []

    def keep(module: Any, given: Any) -> Any:
        captured.append((module, given))
        return module.forward

    state = torch.randn(2, 2, 3)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        model = Surrounded(KINDS[kind](4, 3, 2))
        torch.compile(model, backend=keep)(torch.randn(5, 2, 4), (state, state) if kind == "lstm" else state)
    ((module, given),) = captured
    for device in ("cpu", "cuda"):
        with FakeTensorMode():
            examples = [torch.empty(value.shape, device=device) for value in given]
        operations = [node.op for node in graph_of_nodes(LazyGraph(module, examples).graph).graph.nodes]
        assert operations.count(kind) == 2


def test_other_backends_see_what_they_saw() -> None:
    seen: list[str] = []

    def other_backend(module: Any, examples: Any) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes)
        return module.forward

    model, x = Surrounded(nn.LSTM(4, 3)), torch.randn(2, 1, 4)
    torch.compile(model, backend=other_backend)(x)
    assert not [name for name in seen if "lstm" in name]
    assert not torch._dynamo.config.allow_rnn
    with torch._dynamo.config.patch(allow_rnn=True):
        torch._dynamo.reset()
        torch.compile(model, backend=other_backend)(x)
    assert [name for name in seen if "lstm" in name]


def test_digests_of_settings_are_unchanged() -> None:
    """Keep the digests of Dynamo's settings.

    Other caches make keys of them by pickling or by `repr`.
    """
    setting = torch._dynamo.config.allow_rnn
    assert (pickle.loads(pickle.dumps(setting)), repr(setting), setting) == (False, "False", False)


def test_other_callers_get_pytorchs_decomposition() -> None:
    layer, kept = nn.GRU(4, 3), torch.ops.aten.gru.input
    named = {"params": list(layer.parameters()), "has_biases": True, "num_layers": 1, "dropout": 0.0, "train": False}
    x, state = torch.randn(2, 1, 4), torch.randn(1, 1, 3)
    found = kept.decompose(x, state, **named, bidirectional=False, batch_first=False)
    assert all(torch.allclose(a, b) for a, b in zip(found, layer(x, state), strict=True))
    with decompose_layers() as met, FakeTensorMode(allow_non_fake_inputs=True), enable_python_dispatcher():
        assert kept(x, state, **named, bidirectional=False, batch_first=False)[0].shape == (2, 1, 3)
    assert met.layers


@needs_opencl
def test_explicit_setting_takes_precedence(imported_operations: list[set[str]]) -> None:
    model, x = Surrounded(nn.GRU(4, 3)), torch.randn(2, 1, 4)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=False):
        torch.compile(model, backend=cuts_backend)(x)
        assert not any("gru" in operations for operations in imported_operations)
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=cuts_backend)(x)
    assert "gru" in imported_operations[-1]


def test_backward_reuses_the_dropout_mask() -> None:
    """Compare with a directional derivative for equal random numbers.

    They follow from PyTorch's seed.
    """
    model = Surrounded(nn.GRU(4, 5, 2, dropout=0.5)).double()
    compiled = torch.compile(model, backend=Recorder("reference"))
    x, way = torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double()

    def loss(at: Any, seed: int = 1) -> Any:
        torch.manual_seed(seed)
        return compiled(at)[0].square().sum()

    with torch._dynamo.config.patch(allow_rnn=True):
        wanted = x.clone().requires_grad_()
        loss(wanted).backward()
        upper, lower = (loss((x + step * way).requires_grad_()).detach() for step in (1e-5, -1e-5))
        assert torch.allclose((wanted.grad * way).sum(), (upper - lower) / 2e-5, rtol=1e-5)
        assert loss(x.clone().requires_grad_(), 2) != loss(x.clone().requires_grad_())


@needs_opencl
@pytest.mark.parametrize("trained", [False, True])
def test_batches_and_lengths_share_what_dynamo_captured(trained: bool, imported_operations: list[set[str]]) -> None:
    model = Surrounded(nn.LSTM(4, 3, batch_first=True))
    compiled = torch.compile(model, backend=cuts_backend, fullgraph=True, dynamic=True)
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    sizes = ((2, 3), (4, 3), (4, 6), (2, 3))
    with torch.set_grad_enabled(trained):
        for size in sizes:
            x = torch.randn(*size, 4)
            found, expected = list(compiled(x)), list(model(x))
            assert_near(found, expected)
            if trained:
                torch.autograd.backward([v.sum() for v in found])
    assert (counted["unique_graphs"], len(imported_operations)) == (1, 3 * (1 + trained))


@everywhere
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_says_in_what_type_layers_compute(place: str, kind: str) -> None:
    model, x = Surrounded(KINDS[kind](4, 3)).to(place), torch.randn(2, 1, 4, device=place)
    with torch.no_grad(), torch.autocast(place, dtype=torch.bfloat16):
        found, expected = torch.compile(model, backend=cuts_backend, fullgraph=True)(x), model(x)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype is b.dtype and torch.allclose(a.float(), b.float(), atol=2e-2)


class Foreign(nn.Module):
    """Recurrent layer, and an unsupported operation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(3, 3)

    def forward(self, x: Any) -> tuple[Any, ...]:
        y, _ = self.layer(x)
        return (torch.linalg.matrix_exp(y),)


@pytest.mark.parametrize(
    ("make", "x"),
    [(lambda: Surrounded(nn.LSTM(4, 5, proj_size=3)), torch.randn(2, 3, 4)), (Foreign, torch.randn(2, 3, 3))],
    ids=["projected", "beside what is foreign"],
)
@pytest.mark.parametrize("trained", [False, True])
def test_unsupported_graph_gives_one_warning(make: Any, x: Any, trained: bool) -> None:
    model = make()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=cuts_backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UncompiledWarning)
        if trained:
            found, expected = (steps_and_gradients(m, c, x) for m, c in ((model, compiled), (reference, reference)))
            assert_near(found[1], expected[1])
        else:
            with torch.no_grad():
                assert_near(list(compiled(x)), list(model(x)))
    (warning,) = (w for w in caught if issubclass(w.category, UncompiledWarning))
    assert "not supported" in str(warning.message)


@torch.library.custom_op("cuts_recurrent_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


double.register_fake(torch.empty_like)


class Doubled(torch.autograd.Function):
    """Identity with the double gradient, by an unknown operation."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return torch.ops.cuts_recurrent_tests.double(gradient)


class UnknownGradient(nn.Module):
    """Recurrent layer, and a table whose gradient is unsupported."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(5, 4), nn.LSTM(4, 3)

    def forward(self, x: Any) -> tuple[Any, ...]:
        return (self.layer(Doubled.apply(self.table(x)))[0],)


@needs_opencl
@pytest.mark.parametrize("dynamic", [False, True])
def test_unsupported_backward_graph_is_right(dynamic: bool) -> None:
    """Run an unsupported backward graph in PyTorch.

    PyTorch makes it at the first backward pass, after the forward graph is compiled, or together with that.
    """
    model, x = UnknownGradient(), torch.tensor([[1, 2], [4, 1], [1, 0]])
    compiled = torch.compile(model, backend=cuts_backend, dynamic=dynamic)
    gradients = []
    for call in (model, compiled):
        model.zero_grad()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UncompiledWarning)
            call(x)[0].sin().sum().backward()
        gradients.append([p.grad for p in model.parameters()])
    assert len([w for w in caught if issubclass(w.category, UncompiledWarning)]) == 1
    assert_near(*gradients)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given_state", [False, True])
def test_packed_sequences_stay_in_pytorch_with_one_warning(kind: str, given_state: bool) -> None:
    layer, x = KINDS[kind](4, 3, batch_first=True), torch.randn(2, 3, 4)
    state = torch.randn(1, 2, 3)
    state = ((state, state) if kind == "lstm" else state) if given_state else None

    def run_packed(x: Any) -> Any:
        given = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(layer(given, state)[0], batch_first=True)[0]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("default", UncompiledWarning)
        assert torch.equal(torch.compile(run_packed, backend=cuts_backend)(x), run_packed(x))
    (warning,) = (w for w in caught if issubclass(w.category, UncompiledWarning))
    assert "packed" in str(warning.message)


def test_hidden_packed_sequence_runs_in_pytorch() -> None:
    """Continue after Dynamo's graph break in the middle of a layer."""
    layer, x = nn.LSTM(4, 3, batch_first=True), torch.randn(2, 3, 4)
    held = {"x": nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)}

    def run_packed(held: Any) -> Any:
        found, _ = layer(held["x"])
        return nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0]

    assert torch.equal(torch.compile(run_packed, backend=cuts_backend)(held), run_packed(held))
