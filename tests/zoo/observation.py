"""Observation of captured graphs and their compilation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from attrs import define, field
from cuts.compile import torch_backend
from cuts.frontends.torch.captured_graph import CapturedGraph
from cuts.frontends.torch.decompositions.recurrent_layers import compile_layers
from cuts.frontends.torch.dynamo_backend import dynamo
from cuts.frontends.torch.dynamo_backend.autograd import apply_autograd
from cuts.frontends.torch.partial import with_drawn_inputs
from cuts.frontends.torch.partial.unreadable import find_unreadable
from cuts.ir import as_dtype
from cuts.ops.reference import evaluate_graph
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily


@define
class Observation:
    """Counts over the graphs of a model.

    `foreign` has the calls that cannot be imported, by operation; `seconds` is the time of compilation.
    """

    graphs: int = 0
    nodes: int = 0
    foreign: Counter[str] = field(factory=Counter)
    foreign_nodes: int = 0
    reasons: list[str] = field(factory=list)
    launches: int = 0
    seconds: float = 0.0

    def note_graph(self, graph: torch.fx.Graph) -> None:
        """Add a graph of autograd."""
        with unset_fake_temporarily():
            found = find_unreadable(graph, torch.device("cpu"))
        self.graphs += 1
        self.nodes += len(found.live)
        self.foreign.update(str(node.target) for node in found.failures)
        self.foreign_nodes += len(found.foreign)
        self.reasons += [str(error) for error in found.failures.values()]

    def compile_part(self, module: Any, inputs: Sequence[Any]) -> Any:
        """Note a graph, which PyTorch runs."""
        self.note_graph(module.graph)
        return make_boxed_func(module.forward)

    def capture(self, module: Any, examples: Sequence[Any]) -> Callable[..., Any]:
        """Backend of `torch.compile` that compiles nothing.

        PyTorch runs the graphs, and the reference the layers that stay whole in them.
        """
        compile_layers(lambda captured, _: partial(_evaluate, captured))
        with dynamo.decompose_layers():
            return apply_autograd(module, examples, with_drawn_inputs(self.compile_part))


def _evaluate(captured: CapturedGraph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    found = evaluate_graph(captured.graph, captured.registry, inputs)
    return {name: as_dtype(value, captured.graph.types[name].dtype.numpy) for name, value in found.items()}


@contextmanager
def observe_compilation(observation: Observation) -> Iterator[None]:
    """Note all graphs, launches and seconds of the backend."""
    build, drawn = torch_backend.build_cached, dynamo.with_drawn_inputs

    def build_timed(*arguments: Any, **options: Any) -> Any:
        start = perf_counter()
        plan = build(*arguments, **options)
        observation.seconds += perf_counter() - start
        observation.launches += plan.plan.launch_count
        return plan

    def note_parts(compile_part: Callable[..., Any]) -> Callable[..., Any]:
        def compile_noted(module: Any, inputs: Sequence[Any]) -> Any:
            observation.note_graph(module.graph)
            return compile_part(module, inputs)

        return drawn(compile_noted)

    torch_backend.build_cached, dynamo.with_drawn_inputs = build_timed, note_parts
    try:
        yield
    finally:
        torch_backend.build_cached, dynamo.with_drawn_inputs = build, drawn
