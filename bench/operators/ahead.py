"""Processes that import rows and compile them with torch.compile before they are timed.

Each process keeps PyTorch loaded and compiles in itself, as the processes together use all cores. Inductor keeps no
choices between kernels: a device that many processes share gives no reliable times, so the timing process chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from importlib import import_module
from multiprocessing import get_context
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
    """Return PyTorch in strict f32, with an Inductor that compiles in its own process and keeps no choices between
    kernels; what it compiled is found by processes of the same settings.
    """
    loaded = load_torch()
    config: Any = import_module("torch._inductor.config")
    config.compile_threads, config.autotune_local_cache = 1, False
    return loaded


class Calling(torch.nn.Module):
    """A function as a module, which is what torch.export takes."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self.call = call

    def forward(self, *given: Any) -> Any:
        """Return what the function does."""
        return self.call(*given)


@frozen
class Ready:
    """What there is of a row: its graph, or why there is none; why torch.compile failed, if it did; seconds taken."""

    graph: Graph | None
    failure: str = ""
    compile_failure: str = ""
    seconds: float = 0.0
    sources: tuple[Source, ...] = ()


def graph_of(row: SizedOperation) -> Graph:
    """Return a row as a graph of our vocabulary; of a gradient's the function that it is the gradient of.

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
    """Return a row as a graph of our vocabulary, and the declarations that it needs besides: those of gradients."""
    graph, operation = graph_of(row), row.operation
    return operation.derived(graph) if isinstance(operation, GradientOperation) else (graph, ())


def ready(number: int, compiles: bool) -> Ready:
    """Read a row of the suite by its number and, where asked for, let torch.compile compile it on the GPU."""
    load_settled_torch()
    begin, row = perf_counter(), EVERY[number]
    try:
        graph, sources = read(row)
    except CutsError as error:
        return Ready(None, error.message.splitlines()[0], seconds=perf_counter() - begin)
    failure = _compiled(row) if compiles else ""
    return Ready(graph, "", failure, perf_counter() - begin, sources)


def _compiled(row: SizedOperation) -> str:
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


class Ahead:
    """Processes that make rows ready; `close` ends them."""

    def __init__(self, workers: int) -> None:
        self.pool = ProcessPoolExecutor(workers, get_context("spawn"))

    def begin(self, numbers: Sequence[int], compiled: Collection[int]) -> list[Future[Ready]]:
        """Begin to make rows ready, in their order, those of some numbers compiled by torch.compile."""
        return [self.pool.submit(ready, number, number in compiled) for number in numbers]

    def rows(self, begun: Sequence[Future[Ready]]) -> Iterator[Ready]:
        """Yield what there is of rows that were begun; a row whose process died is one that failed."""
        for future in begun:
            try:
                yield future.result()
            except BrokenProcessPool:
                yield Ready(None, "the process that read it died")

    def close(self) -> None:
        """End the processes."""
        self.pool.shutdown(wait=False, cancel_futures=True)
