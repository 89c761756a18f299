"""Compilation in parts of graphs with calls that cannot be imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen

from ....ir import CutsError
from ..dispatch import faults, results
from .staged_function import StagedFunction, stage_calls
from .subgraphs import Subgraph, subgraphs
from .unreadable import can_enter, find_unreadable

#: Errors that a warning quotes.
MAX_QUOTED_ERRORS = 4
#: Namespaces of PyTorch's collectives: calls between processes, which stay in PyTorch without a warning.
COLLECTIVE_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"})


@frozen(eq=False)
class CompiledStages:
    """Compiled parts, and a sentence that names the calls in PyTorch.

    `foreign` has the names of these calls by operation.
    """

    function: StagedFunction
    warning: str
    foreign: Mapping[str, tuple[str, ...]]

    @property
    def parts(self) -> int:
        """Number of compiled parts."""
        return sum(call.compiled for call in self.function.calls)


def compile_stages(
    graph: torch.fx.Graph,
    device: torch.device,
    constants: Mapping[int, torch.Tensor],
    compile_part: Callable[[torch.fx.Graph], Callable[..., list[Any]]],
    name: str = "a captured graph",
    cause: CutsError | None = None,
) -> CompiledStages | None:
    """Compile a graph in parts.

    With a `cause`, the error of the whole graph, the result is None where there is nothing to cut. A part that
    `compile_part` refuses runs in PyTorch too. `constants` are inputs, by number, that become constants.
    """
    unreadable = find_unreadable(graph, device, constants)
    parts = subgraphs(graph, unreadable, device)
    readable = all(can_enter(node, device) for node in graph.nodes if node.op == "placeholder")
    if cause is not None and readable and all(part.compiled for part in parts):
        return None  # else an input that is no tensor, as a group of processes, is passed on
    failures = {node: error for node, error in unreadable.failures.items() if not _is_collective(node)}
    errors = faults(failures) or ([] if cause is None or unreadable.failures else [cause])
    stages: list[tuple[Subgraph, Callable[..., Sequence[Any]], bool]] = []
    for stage in parts:
        function: Callable[..., Sequence[Any]] | None = None
        if stage.compiled:
            try:
                function = compile_part(stage.graph)
            except CutsError as error:
                errors.append(error)
        stages.append((stage, function or _module_of(graph, stage), function is not None))
    calls, found = stage_calls(graph, stages, results(graph))
    foreign: dict[str, tuple[str, ...]] = {}
    for node in unreadable.failures:
        foreign[str(node.target)] = (*foreign.get(str(node.target), ()), node.name)
    text = _warning(name, [(stage.calls, compiled) for stage, _, compiled in stages], errors) if errors else ""
    return CompiledStages(StagedFunction(calls, found, device), text, foreign)


def _module_of(graph: torch.fx.Graph, stage: Subgraph) -> torch.fx.GraphModule:
    """Return a stage as a module that PyTorch runs."""
    owner = graph.owning_module if graph.owning_module is not None else torch.nn.Module()
    return torch.fx.GraphModule(owner, stage.graph)


def _is_collective(node: torch.fx.Node) -> bool:
    return getattr(node.target, "namespace", "") in COLLECTIVE_NAMESPACES


def _warning(name: str, stages: Sequence[tuple[int, bool]], errors: Sequence[CutsError]) -> str:
    total, parts = sum(calls for calls, _ in stages), sum(compiled for _, compiled in stages)
    foreign = sum(calls for calls, compiled in stages if not compiled)
    if not foreign:
        return ""
    texts = list(dict.fromkeys(map(str, errors)))
    more = f"; and {len(texts) - MAX_QUOTED_ERRORS} more errors" if len(texts) > MAX_QUOTED_ERRORS else ""
    reasons = "; ".join(texts[:MAX_QUOTED_ERRORS]) + more
    if not parts:
        return f"all {total} nodes of {name} run in PyTorch: {reasons}"
    others = f"the others in {parts} compiled part{'s' * (parts > 1)}"
    return f"{foreign} of {total} nodes ({foreign / total:.1%}) of {name} run in PyTorch, {others}: {reasons}"
