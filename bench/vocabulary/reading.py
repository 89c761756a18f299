"""Reading of rows as graphs, and compilation of their peers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from attrs import field, frozen
from cuts.bench.operators.contenders import load_torch
from cuts.bench.operators.timing import Turns
from cuts.bench.vocabulary.gradients import GradientOperation
from cuts.bench.vocabulary.operation import Given, SizedOperation
from cuts.frontends.torch import read_torch
from cuts.frontends.torch.import_context import TORCH_TYPES
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph
from cuts.ir.source import Source
from cuts.ir.types import DType

Call = Callable[..., Any]


def load_settled_torch(turns: Turns) -> Any:
    """Return PyTorch in strict f32, with a reproducible Inductor.

    Inductor compiles in its own process, keeps no choices between kernels, and chooses between them in turns.
    """
    loaded = load_torch()
    config: Any = import_module("torch._inductor.config")
    config.compile_threads, config.autotune_local_cache = 1, False
    dynamo: Any = import_module("torch._dynamo.config")
    dynamo.recompile_limit = 1000  # rows share the code of a function
    tuner: Any = import_module("torch._inductor.runtime.triton_heuristics").CachingAutotuner
    choose = tuner.benchmark_all_configs

    def choose_in_turn(*given: Any, **more: Any) -> Any:
        with turns.turn():
            return choose(*given, **more)

    tuner.benchmark_all_configs = choose_in_turn
    return loaded


class Calling(torch.nn.Module):
    """Function as a module, the form that torch.export takes."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Any) -> Any:
        """Return the function's results."""
        return self.call(*given)


@frozen
class Ready:
    """Outcome for a row: graph or error, peers and errors of peers."""

    graph: Graph | None
    failure: str = ""
    sources: tuple[Source, ...] = ()
    peers: Mapping[str, Call] = field(factory=dict)
    missing: Mapping[str, str] = field(factory=dict)


def graph_of(row: SizedOperation) -> Graph:
    """Return a row as a graph of our vocabulary.

    Of a gradient's row it is the differentiated function.

    Raises `GraphError` where PyTorch cannot trace it or our vocabulary cannot say it.
    """
    operation = row.operation
    given, call = (
        (operation.operands(row.given), operation.forward)
        if isinstance(operation, GradientOperation) and operation.traced is None
        else (row.given, operation.traced or operation.call)
    )
    return read_torch(Calling(call), tuple(map(example, given)))


def read(row: SizedOperation) -> tuple[Graph, tuple[Source, ...]]:
    """Return a row as a graph, and the declarations that it adds.

    These are those of gradients.
    """
    graph, operation = graph_of(row), row.operation
    if isinstance(operation, GradientOperation) and operation.traced is None:
        return operation.derive(graph)
    return graph, ()


def ready(row: SizedOperation, compiles: bool = False, peers: bool = False) -> Ready:
    """Import a row and, on request, call its compiled peers once."""
    try:
        graph, sources = read(row)
    except CutsError as error:
        return Ready(None, error.message.splitlines()[0])
    own = row.operation
    wanted = {"compile": torch.compile(own.call, dynamic=False)} if compiles and "compile" in own.plain else {}
    found, missing = dict[str, Call](), dict[str, str]()
    torch.backends.cudnn.benchmark = False  # cuDNN chooses when it is timed
    for name, call in {**wanted, **(own.peers if peers else {})}.items():
        try:
            call(*(example(given, "cuda") for given in row.given))
            torch.cuda.synchronize()
            found[name] = call
        except Exception as error:  # PyTorch's compiler and its memory fail in many ways, and each is a row's own
            missing[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    torch.backends.cudnn.benchmark = True
    if found or missing:
        torch.cuda.empty_cache()
    return Ready(graph, "", sources, found, missing)


def example(given: Given, device: str = "cpu") -> Any:
    """Return an operand: its integers, or zeros."""
    if given.type.dtype is DType.I64:
        return torch.from_numpy(given.values(0)).to(device)
    return torch.zeros(given.shape, dtype=TORCH_TYPES[given.type.dtype], device=device)
