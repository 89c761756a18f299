"""Processes that import rows and compile them with torch.compile ahead of timing.

Each process keeps PyTorch loaded and compiles in itself, as the processes together use all cores. Inductor keeps no
choices between kernels: a device that many processes share gives no reliable times, so the timing process chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from time import perf_counter
from typing import Any

import torch
from attrs import frozen
from cuts.bench.operators.contenders import load_torch
from cuts.bench.operators.suite import EVERY, GradientOperation
from cuts.bench.operators.vocabulary import SizedOperation
from cuts.frontends.torch import read_torch
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph
from cuts.ir.source import Source


def load_settled_torch() -> Any:
    """Return PyTorch in strict f32, with a reproducible Inductor.

    Inductor compiles in its own process and keeps no choices between kernels; processes of the same settings find its
    results.
    """
    loaded = load_torch()
    config: Any = import_module("torch._inductor.config")
    config.compile_threads, config.autotune_local_cache = 1, False
    return loaded


class Calling(torch.nn.Module):
    """Function as a module, the form that torch.export takes."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Any) -> Any:
        """Return the function's results."""
        return self.call(*given)


@frozen
class Ready:
    """Outcome for a row: graph or error, and torch.compile's error.

    It includes the seconds.
    """

    graph: Graph | None
    failure: str = ""
    compile_failure: str = ""
    seconds: float = 0.0
    sources: tuple[Source, ...] = ()


def graph_of(row: SizedOperation) -> Graph:
    """Return a row as a graph of our vocabulary.

    Of a gradient's row it is the differentiated function.

    Raises `GraphError` where PyTorch cannot trace it or our vocabulary cannot say it.
    """
    operation = row.operation
    given, call = (
        (operation.operands(row.given), operation.forward)
        if isinstance(operation, GradientOperation)
        else (row.given, operation.call)
    )
    return read_torch(Calling(call), tuple(torch.zeros(g.shape, dtype=_dtype(g.draw)) for g in given))


def read(row: SizedOperation) -> tuple[Graph, tuple[Source, ...]]:
    """Return a row as a graph, and the declarations that it adds.

    These are those of gradients.
    """
    graph, operation = graph_of(row), row.operation
    return operation.derive(graph) if isinstance(operation, GradientOperation) else (graph, ())


def ready(number: int, compiles: bool) -> Ready:
    """Import a suite's row by number, and compile it on request.

    torch.compile compiles it on the GPU.
    """
    load_settled_torch()
    begin, row = perf_counter(), EVERY[number]
    try:
        graph, sources = read(row)
    except CutsError as error:
        return Ready(None, error.message.splitlines()[0], seconds=perf_counter() - begin)
    failure = _compile_error(row) if compiles else ""
    return Ready(graph, "", failure, perf_counter() - begin, sources)


def _compile_error(row: SizedOperation) -> str:
    """Compile a row by torch.compile; return why that failed, nothing where it did not."""
    torch._dynamo.reset()
    try:
        given = [torch.zeros(g.shape, dtype=_dtype(g.draw), device="cuda") for g in row.given]
        torch.compile(row.operation.call, dynamic=False)(*given)
        torch.cuda.synchronize()
    except Exception as error:  # PyTorch's compiler and its memory fail in many ways, and each is a row's own
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    finally:
        torch.cuda.empty_cache()
    return ""


def _dtype(draw: str) -> torch.dtype:
    return torch.int64 if draw == "integer" else torch.float32


def result_of(begun: Future[Ready]) -> Ready:
    """Return a begun row's outcome; one of a dead process failed."""
    try:
        return begun.result()
    except BrokenProcessPool:
        return Ready(None, "the process that read it died")
