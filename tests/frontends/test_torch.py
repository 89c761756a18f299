"""PyTorch models: export, import, and comparison with PyTorch."""

from __future__ import annotations

import pickle
import pickletools
import warnings
from typing import Any

import numpy as np
import pytest
from attrs import evolve

torch = pytest.importorskip("torch")

from cuts.compile.build import build
from cuts.frontends.torch import captured_graph as captured
from cuts.frontends.torch.loading.load import graph_of_export, graph_of_nodes, load_torch
from cuts.ir import GraphError, Infer
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
nn = torch.nn


class First(nn.Module):
    """A recurrent layer's output alone."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Any) -> Any:
        return self.layer(x)[0]


class Bags(nn.Module):
    """Embedding bags, grid sampling and pairs below the diagonal.

    Bags are rows, or given by offsets.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sums, self.means = nn.EmbeddingBag(9, 4), nn.EmbeddingBag(9, 4, mode="mean")

    def forward(self, indices: Any) -> Any:
        rows = self.sums(indices) * self.means(indices)
        uneven = self.means(indices.flatten(), torch.tensor([0, 2, 2, 7])) + self.sums(
            indices.flatten(), (indices[0] - indices[0, 0]).abs().sort()[0][:4]
        )
        image = rows.reshape(1, 1, 3, 4)
        below = torch.tril_indices(4, 4, -1)
        sampled = nn.functional.grid_sample(image, torch.tanh(uneven).reshape(1, 2, 4, 2), align_corners=False)
        return rows, uneven, sampled, (uneven @ uneven.T)[below[0], below[1]], nn.InstanceNorm2d(1)(image)


class Mixed(nn.Module):
    """Operations of many kinds on one tensor."""

    def forward(self, x: Any) -> Any:
        values, places = torch.topk(x, 3, dim=-1)
        y = torch.cat([values, x[..., 1:3] // 0.5, torch.cumsum(x, -1)[:, ::2]], dim=-1)
        empty = torch.cat([x[:0, 0], x[:0, 1]])
        return (
            torch.where(y > 0, y.clamp(max=2), torch.expm1(y)),
            empty,
            places + 1,
            x.amax(0),
            x.var(1),
            x.argmin(),
            (x > 0).any(1),
        )


def randomise_statistics(module: Any) -> Any:
    """Give batch norms statistics that differ from 0 and 1."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
    return module


MODELS: dict[str, Any] = {
    "perceptron": lambda: (
        nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)),
        torch.randn(3, 8),
    ),
    "convolutions": lambda: (
        randomise_statistics(
            nn.Sequential(
                nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 8, 3, groups=8),
                nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
            )
        ),
        torch.randn(2, 3, 16, 16),
    ),
    "transformer": lambda: (nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, dropout=0.0),
                            torch.randn(2, 7, 16)),
    "lstm": lambda: (First(nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)), torch.randn(2, 5, 8)),
    "gru": lambda: (First(nn.GRU(8, 16)), torch.randn(5, 2, 8)),
    "rnn": lambda: (First(nn.RNN(8, 16, nonlinearity="relu", bias=False)), torch.randn(5, 2, 8)),
    "embedding": lambda: (nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 3)), torch.randint(0, 10, (2, 4))),
    "bags": lambda: (Bags(), torch.randint(0, 9, (3, 5))),
    "upsampling": lambda: (
        nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, 1, 1), nn.GroupNorm(2, 4), nn.Upsample(scale_factor=2, mode="bilinear"),
            nn.PixelShuffle(2),
            nn.ELU(),
        ),
        torch.randn(1, 3, 5, 5),
    ),
    "mixed": lambda: (Mixed(), torch.randn(4, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_reference_computes_what_pytorch_does(name: str) -> None:
    torch.manual_seed(0)
    module, example = MODELS[name]()
    graph = load_torch(module.eval(), (example,))
    found = evaluate_graph(graph, Registry.builtin(), {graph.inputs[0]: example.numpy()})
    expected = module(example)
    for output, value in zip(graph.outputs, expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert graph.types[output].shape == tuple(value.shape)
        assert np.allclose(found[output], value.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_unpickling_a_graph_needs_no_pytorch(name: str) -> None:
    """Keep PyTorch out of the pickles of graphs.

    A tuner's workers receive parts of graphs: a name of a class of this importer would make all of them import PyTorch,
    for longer than short searches take.
    """
    module, example = MODELS[name]()
    assert not foreign_modules(load_torch(module.eval(), (example,)))


def foreign_modules(graph: Graph) -> list[str]:
    """Return the modules of PyTorch and its importer in a graph's pickle."""
    text = pickle.dumps(evolve(graph, constants={}))
    named = {a for _, a, _ in pickletools.genops(text) if isinstance(a, str)}
    return [name for name in named if name.startswith(("torch.", "cuts.frontends"))]


@needs_opencl
def test_nor_do_graphs_that_pytorch_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Graph] = []
    verify = captured.verify_graph

    def record(graph: Graph, infer: Infer) -> Graph:
        seen.append(graph)
        return verify(graph, infer)

    monkeypatch.setattr(captured, "verify_graph", record)
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
    compiled = torch.compile(network, backend="cuts")
    compiled(torch.randn(3, 8)).sum().backward()
    assert len(seen) == 2  # forward and backward
    assert not [name for graph in seen for name in foreign_modules(graph)]


def test_recurrent_layers_and_attention_stay_whole() -> None:
    for name, op in (("lstm", "lstm"), ("gru", "gru"), ("rnn", "rnn"), ("transformer", "attention")):
        module, example = MODELS[name]()
        assert op in {node.op for node in load_torch(module.eval(), (example,)).nodes}


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (lambda: nn.LSTM(4, 5, 2, dropout=0.5), "dropout draws random numbers"),
        (lambda: nn.Dropout(0.5), "dropout draws random numbers"),
        (lambda: nn.LSTM(4, 5, proj_size=3), "projected states"),
    ],
    ids=["between layers", "dropout", "projected"],
)
def test_a_layer_that_cannot_be_exported_is_refused(layer: Any, message: str) -> None:
    with pytest.raises(GraphError, match=message):
        load_torch(layer(), (torch.randn(3, 2, 4),))


@needs_opencl
def test_a_plan_computes_what_pytorch_does() -> None:
    torch.manual_seed(0)
    module, example = MODELS["convolutions"]()
    graph = load_torch(module.eval(), (example,))
    found = build(graph, target="opencl").run({graph.inputs[0]: example.numpy()})
    assert np.allclose(found[graph.outputs[0]], module(example).detach().numpy(), rtol=1e-4, atol=1e-5)


def test_all_unsupported_operations_are_reported_at_once() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.matrix_exp(x), torch.linalg.qr(x)

    with pytest.raises(CutsError, match=r"2 operations are not supported: aten\.\S*matrix_exp\S* .*; aten\.linalg_qr"):
        load_torch(Odd(), (torch.randn(3, 3),))


@needs_opencl
def test_torch_compile_runs_our_kernels() -> None:
    from cuts.compile.torch_backend import cuts_backend

    torch.manual_seed(0)
    module, example = MODELS["perceptron"]()
    with torch.no_grad():
        compiled = torch.compile(module.eval(), backend=cuts_backend)
        assert torch.allclose(compiled(example), module(example), atol=1e-5)


def test_gpu_attention_of_pytorch_is_one_operation() -> None:
    """Import the traced attention of GPUs as one operation.

    Its graph is that of an export on the CPU, so that facts about one hold for both.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    q, k, v, bias = (torch.empty(shape, device="meta") for shape in (*3 * [(2, 4, 9, 8)], (2, 4, 9, 9)))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        efficient = torch.ops.aten._scaled_dot_product_efficient_attention
        return efficient(q, k, v, bias, False, 0.0, False, scale=0.25)[0]

    made = make_fx(attend, tracing_mode="fake")(q, k, v, bias)
    (node,) = graph_of_nodes(made.graph).graph.nodes
    assert (node.op, len(node.inputs)) == ("attention", 4)
    assert dict(node.attributes) == {"causal": False, "scale": 0.25}


ATTENTION_MASKS = {
    "none": lambda: None,
    "expanded truth values": lambda: torch.ones(1, 1, 1, 5, dtype=torch.bool).expand(1, 1, 5, 5),
    "expanded numbers": lambda: torch.zeros(1, 1, 5, 1).expand(1, 2, 5, 5),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("mask", ATTENTION_MASKS)
def test_attention_without_gradients_stays_whole(mask: str, dtype: torch.dtype) -> None:
    from cuts.frontends.torch.dynamo_backend.dynamo import dynamo_backend

    torch._dynamo.reset()
    operations: list[str] = []

    def compile_graph(captured: Any, device: str) -> Any:
        operations.extend(node.op for node in captured.graph.nodes)
        return lambda arrays: evaluate_graph(captured.graph, captured.registry, arrays)

    q, given = torch.randn(1, 2, 5, 4, dtype=dtype), ATTENTION_MASKS[mask]()
    if given is not None and given.dtype is torch.float32:
        given = given.to(dtype)
    attend = nn.functional.scaled_dot_product_attention
    with torch.no_grad():
        compiled = torch.compile(
            attend, backend=lambda module, examples: dynamo_backend(module, examples, compile_graph)
        )
        found, wanted = compiled(q, q * 2, q + 1, given), attend(q, q * 2, q + 1, given)
        assert torch.allclose(found.float(), wanted.float(), atol=1e-5 if dtype is torch.float32 else 0.05)
        assert found.stride() == wanted.stride()
    assert operations.count("attention") == 1
    assert set(operations) <= {"attention", "transpose", "expand", "cast"}


def test_unsupported_graphs_run_in_pytorch() -> None:
    from cuts.compile.torch_backend import cuts_backend
    from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning

    compiled = torch.compile(lambda x: torch.linalg.eigvalsh(x) + 1, backend=cuts_backend)
    with torch.no_grad(), pytest.warns(UncompiledWarning, match="1 operation is not supported"):
        assert torch.allclose(compiled(torch.eye(3)), torch.full((3,), 2.0))


def test_operations_registered_later_decompose() -> None:
    load_torch(nn.ReLU(), (torch.ones(2),))

    class Later(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.cuts_later.twice(x)

    with torch.library._scoped_library("cuts_later", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        graph = load_torch(Later(), (torch.ones(2),))
    assert [node.op for node in graph.nodes] == ["mul"]


def test_internal_warnings_of_pytorch_are_suppressed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = torch.export.export(nn.BatchNorm1d(3), (torch.rand(2, 3),))  # it is decomposed as a whole
    whole = type(program).run_decompositions

    def warning(self: Any, *arguments: Any) -> Any:
        warnings.warn("this is deprecated", FutureWarning, stacklevel=1)
        return whole(self, *arguments)

    monkeypatch.setattr(type(program), "run_decompositions", warning)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert graph_of_export(program).nodes
