"""Graphs of `torch.compile` that are cut around calls outside the vocabulary."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch import dispatch
from cuts.frontends.torch.captured_graph import UncompiledWarning
from cuts.frontends.torch.dynamo_backend.dynamo import dynamo_backend
from cuts.frontends.torch.partial import unreadable
from cuts.frontends.torch.partial.staged_function import TIMED_CALL, StagedFunction
from cuts.ir import BackendError, CompileOptions
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import needs_opencl

nn = torch.nn
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("dynamo_afresh")]


@pytest.fixture(autouse=True, scope="module")
def _operators() -> Iterator[None]:
    """Register operations that no frontend knows."""
    with torch.library._scoped_library("partial_tests", "FRAGMENT") as library:
        for name, function in OPERATORS.items():
            operator = torch.library.custom_op(f"partial_tests::{name}", function, mutates_args=())
            operator.register_fake(function if name != "places" else _fake_places)
            if name in GRADIENTS:
                operator.register_autograd(GRADIENTS[name], setup_context=_save_input)
        yield
        del library


def _halve(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5


def _split(x: torch.Tensor) -> list[torch.Tensor]:
    return [x + 1, x - 1]


def _places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x > 0), x.argsort(-1)


def _fake_places(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x, dtype=torch.bool), torch.empty_like(x, dtype=torch.int64)


def _turn(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone(memory_format=torch.contiguous_format).t()


def _save_input(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _total(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "halve": _halve, "split": _split, "places": _places, "turn": _turn, "total": _total,
}  # fmt: skip
GRADIENTS: Mapping[str, Callable[..., Any]] = {
    "halve": lambda context, gradient: gradient * 0.5 + 0 * context.saved_tensors[0],
    "turn": lambda context, gradient: foreign("halve")(gradient) * 2,
}


class Recorder:
    """Backend for the reference that records its plans and warnings."""

    def __init__(self) -> None:
        self.plans: list[Any] = []
        self.warnings: list[str] = []
        self.ran: list[int] = []

    def __call__(self, module: Any, examples: Any) -> Any:
        return dynamo_backend(module, examples, self._compile)

    def _compile(self, captured: Any, device: Any) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        spec = Spec(captured.registry, captured.texts)
        plan, number = build_graph(captured.graph, spec, find_target("reference"), CompileOptions()), len(self.plans)
        self.plans.append(captured.graph)

        def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
            self.ran.append(number)
            return plan.run(arrays)

        return run

    def call(self, function: Callable[..., Any], *arguments: Any, dynamic: bool | None = False) -> Any:
        """Compile a function and return its results, with recorded warnings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = torch.compile(function, backend=self, dynamic=dynamic, fullgraph=True)(*arguments)
        self.warnings += [str(each.message) for each in caught if each.category is UncompiledWarning]
        return found

    @property
    def operations(self) -> list[int]:
        """The number of nodes of each plan."""
        return [len(graph.nodes) for graph in self.plans]


def foreign(name: str) -> Any:
    """Return an operation that no frontend knows."""
    return getattr(torch.ops.partial_tests, name)


def x_of(*shape: int) -> Any:
    return torch.randn(*(shape or (8, 16)), dtype=torch.float64)


def check(function: Callable[..., Any], *arguments: Any, parts: int, dynamic: bool | None = False) -> Recorder:
    """Compare with eager, results and layouts, and count the compiled parts."""
    recorder = Recorder()
    others = copy.deepcopy(arguments)
    torch.manual_seed(1)
    expected = function(*arguments)
    torch.manual_seed(1)
    found = recorder.call(function, *others, dynamic=dynamic)
    assert_equal([*arguments, expected], [*others, found])
    assert len(recorder.plans) == parts, recorder.warnings
    return recorder


def assert_equal(expected: Any, found: Any) -> None:
    """Compare tensors in nested lists: values, types and strides."""
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert found.stride() == expected.stride() and found.storage_offset() == expected.storage_offset()
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, two in zip(expected, found, strict=True):
            assert_equal(one, two)
    else:
        assert found == expected


def work(x: Any) -> Any:
    """Return a value of several operations."""
    return torch.relu(x).exp().softmax(-1)


# ---- places of foreign calls


def test_one_call_in_the_middle() -> None:
    recorder = check(lambda x: work(foreign("halve")(work(x))), x_of(), parts=2)
    (text,) = recorder.warnings
    assert text.startswith("1 of ") and " of a captured graph run in PyTorch, the others in 2 compiled parts" in text
    assert "1 operation is not supported: partial_tests.halve.default (node 'halve')" in text


def test_calls_in_first_and_last_place() -> None:
    check(lambda x: work(foreign("halve")(x)), x_of(), parts=1)
    check(lambda x: foreign("halve")(work(x)), x_of(), parts=1)
    check(lambda x: foreign("halve")(work(foreign("halve")(x))), x_of(), parts=1)


def test_several_calls_cut_as_often_as_needed() -> None:
    def chain(x: Any) -> Any:
        return work(foreign("halve")(foreign("turn")(work(foreign("halve")(work(x))))))

    recorder = check(chain, x_of(16, 16), parts=3)
    assert "2 operations are not supported" in recorder.warnings[0]

    def branches(x: Any) -> Any:
        a, b = work(x), work(x + 1)
        return work(foreign("halve")(a)) * work(foreign("halve")(b)) + work(a * b)

    check(branches, x_of(), parts=2)


def test_calls_with_several_results() -> None:
    def forward(x: Any) -> Any:
        up, down = foreign("split")(work(x))
        return work(up) + work(down), up

    check(forward, x_of(), parts=2)


def test_small_calls_and_views_make_no_part() -> None:
    recorder = check(lambda x: work(foreign("halve")(foreign("halve")(work(x)).t() + 1)), x_of(), parts=2)
    assert recorder.warnings[0].startswith("4 of ")
    recorder = check(lambda x: foreign("halve")(x.t()) + 1, x_of(), parts=0)
    assert recorder.warnings[0].startswith("a graph of ")


def test_a_nested_call() -> None:
    """Leave a condition to PyTorch whose branch has an unknown call."""

    def choose(x: Any) -> Any:
        h = work(x)
        h = torch.cond(h.sum() > 0, lambda v: foreign("halve")(v), lambda v: v + 1, (h,))
        return work(h)

    recorder = check(choose, x_of(), parts=2)
    assert "partial_tests.halve.default" in recorder.warnings[0]


def test_a_conversion_that_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def convert(ctx: Any, x: Any) -> Any:
        ctx.emit("exp", x)
        raise KeyError("no such thing")

    monkeypatch.setitem(dispatch.TABLE, "aten.tan", convert)
    recorder = check(lambda x: work(torch.tan(work(x))), x_of(), parts=2)
    assert (
        "node 'tan' (aten.tan.default): KeyError: 'no such thing'; report this with the model" in recorder.warnings[0]
    )


def test_all_failures_are_named() -> None:
    def function(x: Any) -> Any:
        return work(foreign("turn")(work(foreign("halve")(work(foreign("split")(work(x))[0])))) / 2)

    text = check(function, x_of(), parts=4).warnings[0]
    assert all(f"partial_tests.{name}.default" in text for name in ("halve", "turn", "split"))


def test_a_part_without_kernels_runs_in_pytorch() -> None:
    class Refusing(Recorder):
        def _compile(self, captured: Any, device: Any) -> Any:
            if any(node.op == "cosh" for node in captured.graph.nodes):
                raise BackendError("no hyperbolic cosine")
            return super()._compile(captured, device)

    recorder, x = Refusing(), x_of()
    function = lambda x: work(foreign("halve")(work(x).cosh()))  # noqa: E731
    assert_equal(function(x), recorder.call(function, x))
    assert len(recorder.plans) == 1 and "no hyperbolic cosine" in recorder.warnings[0]


# ---- values that cross


def test_integers_and_conditions_cross() -> None:
    def places(x: Any) -> Any:
        positive, order = foreign("places")(work(x) - 0.05)
        return torch.where(positive, work(x), 0).gather(1, order), order + 1, ~positive

    check(places, x_of(), parts=2)


def test_numbers_cross() -> None:
    def scale(x: Any, number: Any) -> Any:
        total = foreign("total")(work(x))
        return work(x) * total / number, total * 2

    check(scale, x_of(), torch.tensor(3.0, dtype=torch.float64), parts=2)


def test_values_cross_in_any_layout() -> None:
    check(lambda x: work(foreign("halve")(work(x)[:, 1::2].t())), x_of(), parts=2)
    check(lambda x: work(foreign("turn")(work(x))[1:, 2:]), x_of(), parts=2)
    check(lambda x: foreign("halve")(work(x)[:1].expand(8, 16)) + work(x), x_of(), parts=2)
    check(lambda x: foreign("halve")(work(x).unfold(1, 4, 2)).sum(0).exp().softmax(0), x_of(), parts=2)


def test_complex_values_stay_on_one_side() -> None:
    def spectrum(x: Any) -> Any:
        h = torch.fft.rfft(work(x))
        h = torch.asin(h) * 2
        return work(torch.fft.irfft(h, n=16))

    check(spectrum, x_of(), parts=2)


def test_constants_are_computed_by_each_stage() -> None:
    def model(x: Any) -> Any:
        mask = torch.ones(16, 16, dtype=torch.bool).tril()
        places = torch.arange(16).flip(0)
        h = work(x).masked_fill(~mask[:8], 0)[:, places]
        h = foreign("halve")(h) * mask[3]
        return work(h)[:, places], mask, places

    check(model, x_of(), parts=2)


# ---- results, state


def test_results_share_storage_as_in_eager() -> None:
    def views(x: Any) -> Any:
        y = work(foreign("halve")(work(x)))
        return y, y.t(), y[2:, 1:], x.t(), x[1:]

    x = x_of()
    check(views, x, parts=2)
    y, turned, part, given, _ = torch.compile(views, backend=Recorder())(x)
    assert len({each.untyped_storage().data_ptr() for each in (y, turned, part)}) == 1
    assert given.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


def test_foreign_results_and_their_views() -> None:
    check(lambda x: (foreign("halve")(work(x)), foreign("turn")(x).t(), work(x)), x_of(), parts=1)


def test_writes_reach_the_inputs() -> None:
    def write(x: Any, state: Any) -> Any:
        state.add_(foreign("halve")(work(x)))
        x[:, 0] = state[:, 1] * 2
        return work(state)

    check(write, x_of(), x_of(), parts=2)


def test_buffers_are_written() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(8, 16, dtype=torch.float64))

        def forward(self, x: Any) -> Any:
            self.seen.copy_(self.seen * 0.5 + foreign("halve")(work(x)))
            return work(self.seen)

    eager, recorder, x = Counting(), Recorder(), x_of()
    compiled = copy.deepcopy(eager)
    call = torch.compile(compiled, backend=recorder)
    for _ in range(3):
        assert_equal(eager(x), call(x))
        assert_equal(eager.seen, compiled.seen)
    assert len(recorder.plans) == 2


def test_random_numbers_come_in_order() -> None:
    def draw(x: Any) -> Any:
        a = torch.rand(8, 16, dtype=torch.float64)
        h = work(foreign("halve")(work(x + a)))
        return h + torch.randn(8, 16, dtype=torch.float64) + torch.rand(8, 16, dtype=torch.float64)

    check(draw, x_of(), parts=2)


# ---- shapes, training


def test_each_shape_is_cut() -> None:
    recorder = Recorder()
    function = lambda x: work(foreign("halve")(work(x)))  # noqa: E731
    call = torch.compile(function, backend=recorder, dynamic=True)
    for size in (8, 9, 8, 12):
        x = x_of(size, 16)
        assert_equal(function(x), call(x))
    assert len(recorder.plans) == 6


class Trained(nn.Module):
    """Layers around an unknown call with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 24).double(), nn.Linear(24, 16).double()

    def forward(self, x: Any) -> Any:
        return self.last(foreign("halve")(torch.relu(self.first(x)))).softmax(-1)


@pytest.mark.parametrize("verified", ["0", "1"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_training_around_a_foreign_call(dynamic: bool, verified: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_VERIFY", verified)
    eager, x = Trained(), x_of()
    ours, recorder = copy.deepcopy(eager), Recorder()
    compiled = torch.compile(ours, backend=recorder, dynamic=dynamic)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for network, call in ((eager, eager), (ours, compiled)):
            optimiser = torch.optim.SGD(network.parameters(), 0.1)
            for _ in range(3):
                optimiser.zero_grad()
                call(x).square().sum().backward()
                optimiser.step()
    assert_equal([*eager.parameters()], [*ours.parameters()])
    assert len(recorder.plans) >= 2 and len(recorder.ran) == 3 * len(recorder.plans)
    texts = {str(each.message) for each in caught if each.category is UncompiledWarning}
    assert texts and all("run in PyTorch" in text for text in texts)
    assert dynamic or len(texts) == 1


def test_a_backward_graph_is_cut() -> None:
    """Train through a call whose gradient is another unknown call."""
    x = x_of().requires_grad_()
    other = x.detach().clone().requires_grad_()

    def function(x: Any) -> Any:
        return work(foreign("turn")(work(x)))

    function(x).square().sum().backward()
    recorder = Recorder()
    with pytest.warns(UncompiledWarning, match=r"halve.default \(node 'halve'\)"):
        recorder.call(function, other).square().sum().backward()
    torch.testing.assert_close(other.grad, x.grad)
    assert len(recorder.plans) == 4


def test_a_sparse_gradient_is_made_by_pytorch() -> None:
    table = nn.Embedding(9, 4, sparse=True, dtype=torch.float64)
    other, places = copy.deepcopy(table), torch.tensor([[1, 5], [5, 0]])
    table(places).square().sum().backward()
    with pytest.warns(UncompiledWarning, match="sparse_coo"):
        Recorder().call(lambda x: other(x).square().sum(), places).backward()
    assert other.weight.grad.is_sparse
    torch.testing.assert_close(other.weight.grad.to_dense(), table.weight.grad.to_dense())


def test_autocast_and_frozen_parameters() -> None:
    model = Trained().float().eval()
    x = torch.randn(8, 16)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        backend: Any = lambda m, e: dynamo_backend(m, e, Recorder()._compile, freeze=True)  # noqa: E731
        compiled = torch.compile(model, backend=backend)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        model.first.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        torch._dynamo.reset()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, expected = torch.compile(model, backend=Recorder())(x), model(x)
    assert found.dtype is expected.dtype
    torch.testing.assert_close(found, expected, rtol=5e-2, atol=5e-2)


class Attention(nn.Module):
    """A convolution, a norm with statistics, attention and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 16), nn.BatchNorm1d(16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.filter = nn.Conv1d(16, 16, 3, padding=1, groups=2)

    def forward(self, x: Any) -> Any:
        h = self.filter(self.norm(self.table(x).transpose(1, 2))).transpose(1, 2)
        return self.layer(h + h.mean(1, keepdim=True)).log_softmax(-1)


@pytest.mark.parametrize("seed", range(40 if NIGHTLY else 4))
def test_any_calls_may_be_foreign(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train with random calls that cannot be imported, in both graphs."""
    convert, rate = dispatch.convert_node, (0.03, 0.1, 0.3, 0.7)[seed % 4]

    def refuse(node: Any, ctx: Any) -> None:
        chosen = node.op == "call_function" and random.Random(f"{seed} {node.name}").random() < rate
        if chosen and "getitem" not in str(node.target):
            raise dispatch.UnsupportedOperationError(str(node.target))
        convert(node, ctx)

    for module in (dispatch, unreadable):
        monkeypatch.setattr(module, "convert_node", refuse)
    eager, x = Attention().double(), torch.randint(0, 11, (3, 7))
    ours, recorder = copy.deepcopy(eager), Recorder()
    compiled = torch.compile(ours, backend=recorder, dynamic=False)
    for network, call in ((eager, eager), (ours, compiled)):
        for _ in range(2):
            network.zero_grad()
            call(x).square().sum().backward()
    found, expected = ([*net.buffers(), *(p.grad for p in net.parameters())] for net in (ours, eager))
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)
    assert len(recorder.plans) > 2


# ---- running


def test_values_are_released_after_their_last_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[StagedFunction] = []
    make = StagedFunction.__init__

    def note(self: StagedFunction, *arguments: Any) -> None:
        make(self, *arguments)
        held.append(self)

    monkeypatch.setattr(StagedFunction, "__init__", note)
    function = torch.compile(lambda x: work(foreign("halve")(work(x))), backend=Recorder())
    for _ in range(TIMED_CALL):
        function(x_of())
    (staged,) = held
    assert [len(call.released) for call in staged.calls] == [1, 1, 1]
    assert staged.time_share is not None and 0 < staged.time_share < 1


@needs_opencl
def test_kernels_run_between_the_calls_of_pytorch() -> None:
    def model(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = torch.relu(x @ w)
        x = foreign("halve")(x).t()
        return work(x), foreign("places")(x)[1] + 1

    x, w = torch.randn(8, 16), torch.randn(16, 16)
    call = torch.compile(model, backend=cuts_backend)
    with pytest.warns(UncompiledWarning, match="2 operations are not supported"):
        call(x, w)
    for _ in range(2):
        found, expected = call(x, w), model(x, w)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-5)
        assert torch.equal(found[1], expected[1])


class Detector(nn.Module):
    """Convolutions, boxes that an unknown call chooses among, and masks."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.boxes, self.mask = (
            nn.Linear(8, 4),
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 1)),
        )

    def forward(self, image: Any) -> Any:
        h = self.body(image)
        corners = self.boxes(h.flatten(2).transpose(1, 2)).sigmoid()[0] * 8
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:]], 1)
        chosen = foreign("places")(boxes.sum(1))[1][:6]
        rows = boxes[chosen].long().clamp(0, 7)
        crops = torch.stack(
            [h[0, :, row[1] : row[1] + 1].expand(8, 4, 8) for row in torch.zeros(3, 4, dtype=torch.long)]
        )
        return self.mask(crops).sigmoid(), boxes[chosen], rows


@needs_opencl
def test_a_detector_compiles_around_its_choice_of_boxes() -> None:
    model, image = Detector().eval(), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), pytest.warns(UncompiledWarning, match="partial_tests.places.default"):
        found = torch.compile(model, backend=cuts_backend)(image)
    for one, two in zip(found, model(image), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4)
