"""Training under torch.compile: forward, backward and parameter updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph
from cuts.compile.loading import Spec
from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning, dynamo_backend
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ir.compiled import CompileOptions
from cuts.tests.needs import needs_opencl

nn = torch.nn
#: Tracing warns about PyTorch's own insides; that a graph stays in PyTorch is a failure here.
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::cuts.frontends.torch.dynamo_backend.dynamo.UncompiledWarning"),
]


class Recorder:
    """Backend for a target that records its captured graphs."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.captured: list[Any] = []
        self.ran: list[int] = []

    def __call__(self, module: Any, examples: Any) -> Any:
        return dynamo_backend(module, examples, self._compile)

    def _compile(self, captured: Any, device: str) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
        plan = build_graph(
            captured.graph, Spec(captured.registry, captured.texts), find_target(self.target), CompileOptions()
        )
        number = len(self.captured)
        self.captured.append(captured)

        def run(arrays: Mapping[str, Any]) -> Mapping[str, Any]:
            self.ran.append(number)
            return plan.run(arrays)

        return run

    def operations(self, number: int) -> set[str]:
        return {node.op for node in self.captured[number].graph.nodes}


class ConvNet(nn.Module):
    """Convolutions, a batch norm, pooling, a residual sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.norm, self.pool, self.last = nn.BatchNorm2d(8), nn.MaxPool2d(3, 2, 1), nn.Linear(8, 5)

    def forward(self, x: Any, target: Any) -> Any:
        h = self.pool(torch.relu(self.norm(self.first(x))))
        h = nn.functional.adaptive_avg_pool2d(h + nn.functional.silu(self.second(h)), 1)
        return nn.functional.cross_entropy(self.last(h.flatten(1)), target)


class Transformer(nn.Module):
    """A causal language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(11, 16, padding_idx=0), nn.Parameter(torch.randn(7, 16) * 0.1)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.last = nn.Linear(16, 11)

    def forward(self, x: Any, target: Any) -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(7)
        h = self.layer(self.embedding(x) + self.places, src_mask=mask, is_causal=True)
        return nn.functional.cross_entropy(self.last(h).flatten(0, 1), target.flatten())


def batch(name: str) -> tuple[Any, Any]:
    if name == "ConvNet":
        return torch.randn(2, 3, 12, 12), torch.tensor([1, 3])
    return torch.randint(0, 11, (2, 7)), torch.randint(0, 11, (2, 7))


@needs_opencl
@pytest.mark.parametrize(
    ("model", "expected"), [(ConvNet, {"conv_grad", "max_pool_grad"}), (Transformer, {"gather_grad"})]
)
def test_training_steps_equal_those_of_pytorch(model: Any, expected: set[str]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = model()
    ours = copy.deepcopy(eager)
    backend = Recorder("opencl")
    compiled = torch.compile(ours, backend=backend)
    for network, call in ((eager, eager), (ours, compiled)):
        optimiser = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
        torch.manual_seed(1)
        for _ in range(3):
            optimiser.zero_grad()
            call(*batch(model.__name__)).backward()
            optimiser.step()
    assert backend.ran == [0, 1] * 3, "a forward and a backward graph, each run in every step"
    assert all(any(op.startswith(name) for op in backend.operations(1)) for name in expected)
    wanted = {**dict(eager.named_parameters()), **dict(eager.named_buffers())}
    for name, value in {**dict(ours.named_parameters()), **dict(ours.named_buffers())}.items():
        assert torch.allclose(value, wanted[name], rtol=1e-4, atol=1e-5), name


def losses(call: Any, module: Any, seed: int, noise: float = 0.0) -> Any:
    """Return the losses of 20 steps under autocast, from parameters with noise."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(torch.randn(value.shape) * 0.2 if value.dim() > 1 else torch.rand(value.shape) + 0.5)
    torch.manual_seed(seed + 10)
    x, target = batch("Transformer")
    with torch.no_grad():
        for value in module.parameters():
            value.mul_(1 + noise * torch.randn(value.shape))
    optimiser, found = torch.optim.AdamW(module.parameters(), 1e-2), []
    for _ in range(20):
        optimiser.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = call(x, target)
        loss.backward()
        optimiser.step()
        found.append(loss.detach())
    return torch.stack(found)


@needs_opencl
def test_losses_under_autocast_are_those_of_pytorch() -> None:
    """They differ by no more than those of parameters with noise."""
    torch._dynamo.reset()
    module = Transformer()
    compiled = torch.compile(module, backend=Recorder("opencl"))
    for seed in range(3):
        expected, moved, found = (
            losses(call, module, seed, noise) for call, noise in ((module, 0.0), (module, 2e-3), (compiled, 0.0))
        )
        assert expected[-1] < expected[0] / 2
        assert (found - expected).abs().max() <= 2 * (moved - expected).abs().max() + 2e-3


def image() -> Any:
    return torch.randn(2, 4, 6, 6)


#: Modules and functions whose backward graphs use an operation of their own.
CASES: dict[str, Callable[[], Any]] = {
    "transposed convolution": lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
    "dilated convolution": lambda: nn.Conv2d(4, 4, 3, dilation=2, groups=4, bias=False),
    "average pooling": lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "adaptive pooling": lambda: nn.AdaptiveAvgPool2d((2, 4)),
    "adaptive max pooling": lambda: nn.AdaptiveMaxPool2d(3),
    "layer norm": lambda: nn.LayerNorm([6]),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "softmax": lambda: nn.Softmax(1),
    "prelu": nn.PReLU,
    "threshold": lambda: nn.Threshold(0.1, 0.2),
    "replication": lambda: nn.ReplicationPad2d((1, 2, 0, 1)),
    "reflection": lambda: nn.ReflectionPad2d(1),
    "wrapped": lambda: nn.CircularPad2d(1),
    "resizing": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "resizing by a factor": lambda: nn.Upsample(scale_factor=1.3, mode="bilinear"),
    "resizing to a size": lambda: nn.Upsample(size=(9, 4)),
    "resizing to corners": lambda: nn.Upsample(size=(9, 7), mode="bilinear", align_corners=True),
    "windows as columns": lambda: nn.Unfold(2),
    "indices": lambda: lambda x: x[:, [0, 2, 2]] * x[[0, 1, 1], :3, [1, 2, 0]].sum(),
    "strided slice": lambda: lambda x: x[:, 1:3, ::2] * x[:, 2:, 1::2],
    "diagonal": lambda: lambda x: x.diagonal(1, 2, 3) * 2,
    "sorting": lambda: lambda x: x.sort(1)[0] * x.topk(4, 1)[0],
    "cumulative": lambda: lambda x: x.cumsum(1) + x.cumprod(2),
    "norms": lambda: (
        lambda x: x.norm(dim=1) + x.norm(p=1, dim=1) + x.norm(p=3, dim=1) + nn.functional.normalize(x, dim=1)[:, 0]
    ),
    "angle": lambda: lambda x: torch.atan2(x, x.flip(1)),
    "likelihood": lambda: (
        lambda x: nn.functional.cross_entropy(x, torch.zeros(2, 6, 6, dtype=torch.long), weight=torch.arange(1.0, 5))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_those_of_pytorch(name: str) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    made = CASES[name]()
    backend = Recorder("reference")
    wanted = image().requires_grad_()
    found = wanted.detach().clone().requires_grad_()
    expected = made(wanted)
    seed = torch.randn(expected.shape) if expected.shape else torch.tensor(2.0)
    expected.backward(seed)
    value = torch.compile(made, backend=backend)(found)
    value.backward(seed)
    assert backend.ran == [0, 1]
    assert torch.allclose(value, expected, rtol=1e-4, atol=1e-5)
    assert torch.allclose(found.grad, wanted.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize(
    "bags", [(torch.tensor([[1, 5, 5], [0, 2, 1]]),), (torch.tensor([1, 5, 5, 0, 2]), torch.tensor([0, 2, 2]))]
)
def test_tables_learn_from_bags(mode: str, bags: tuple[Any, ...]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    table = nn.EmbeddingBag(7, 4, mode=mode)
    backend = Recorder("reference")
    gradients = []
    for call in (table, torch.compile(table, backend=backend)):
        table.zero_grad()
        call(*bags).square().sum().backward()
        gradients.append(table.weight.grad.clone())
    assert backend.ran == [0, 1]
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("equal", [True, False])
def test_tables_train_from_maxima_of_bags(equal: bool) -> None:
    """Train through maxima of bags of several lengths.

    PyTorch returns their positions; one bag is empty.
    """
    several = (torch.tensor([1, 5, 5, 0, 2]), torch.tensor([0, 3, 3]))
    bags = (torch.tensor([[1, 5, 5], [0, 2, 1]]),) if equal else several
    torch.manual_seed(0)
    torch._dynamo.reset()
    table, gradients = nn.EmbeddingBag(7, 4, mode="max"), []
    for call in (table, torch.compile(table, backend=Recorder("reference"))):
        table.zero_grad()
        call(*bags).square().sum().backward()
        gradients.append(table.weight.grad.clone())
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-5)


def test_each_batch_size_gets_a_graph() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    eager = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    backend = Recorder("reference")
    compiled = torch.compile(eager, backend=backend)
    for size in (4, 2, 7, 2):
        x = torch.randn(size, 4)
        gradients = []
        for call in (eager, compiled):
            eager.zero_grad()
            call(x).square().mean().backward()
            gradients.append([p.grad.clone() for p in eager.parameters()])
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*gradients, strict=True))
    assert len(backend.ran) == 8


def test_extents_among_the_inputs_are_numbers() -> None:
    """Accept extents as arguments.

    Newer versions of PyTorch pass Dynamo's symbolic extents separately, beside the tensors.
    """
    torch._dynamo.reset()
    backend = Recorder("reference")

    def model(x: Any, n: int) -> Any:
        return (x * n).sum(0), n, n + 1

    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for size, n in ((4, 3), (2, 3), (2, 5)):
            x = torch.randn(size, 4)
            found, *numbers = compiled(x, n)
            assert torch.allclose(found, (x * n).sum(0), atol=1e-5)
            assert numbers == [n, n + 1]
    assert len(set(backend.ran)) == 3


def test_number_arguments_stay_numbers() -> None:
    graph = torch.fx.Graph()
    x, n = graph.placeholder("x"), graph.placeholder("n")
    x.meta["val"], n.meta["val"] = torch.empty(2, 3), 2
    y = graph.call_function(torch.ops.aten.mul.Tensor, (x, n))
    y.meta["val"] = torch.empty(2, 3)
    graph.output((y, n, None, 7))
    captured = graph_of_nodes(graph)
    assert (captured.inputs, captured.results[1:]) == (("x", None), (2, None, 7))


def test_dropout_follows_the_seed_of_pytorch() -> None:
    torch._dynamo.reset()
    backend = Recorder("reference")
    compiled = torch.compile(lambda x: nn.functional.dropout(x * 1, 0.25), backend=backend)
    x = torch.ones(64, 64, requires_grad=True)
    torch.manual_seed(3)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), first) and not torch.equal(first, second)
    assert abs((first == 0).float().mean() - 0.25) < 0.03
    first.sum().backward()
    assert torch.equal(x.grad, first.detach())


def test_what_cannot_be_read_stays_in_pytorch() -> None:
    torch._dynamo.reset()
    x = torch.randn(3, 3, requires_grad=True)
    with pytest.warns(UncompiledWarning, match="is not supported"):
        torch.compile(lambda x: torch.linalg.matrix_exp(x), backend=Recorder("reference"))(x).trace().backward()
    assert torch.allclose(x.grad, torch.linalg.matrix_exp(x).T, atol=1e-4)


@needs_opencl
def test_the_step_of_an_optimiser_compiles_by_itself() -> None:
    ours = [torch.randn(4, 3, requires_grad=True)]
    theirs = copy.deepcopy(ours)
    steps = []
    for parameters in (ours, theirs):
        optimiser = torch.optim.AdamW(parameters, lr=0.1)
        steps.append(optimiser.step)
    steps[0] = torch.compile(steps[0], backend=Recorder("opencl"))
    for _ in range(3):
        gradient = torch.randn(4, 3)
        for parameters, step in zip((ours, theirs), steps, strict=True):
            parameters[0].grad = gradient.clone()
            step()
    torch.testing.assert_close(ours[0], theirs[0])
