"""Stages as one function; tensors pass between them on the device.

Each stage is a compiled graph or one of PyTorch. A tensor is released after its last reader. The third call is timed: a
device runs the first ones before its caches are warm.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, TypeAlias

import torch
from attrs import frozen

from ..settings import is_capturing
from .subgraphs import Subgraph

_LOG = logging.getLogger("cuts.frontends")
#: Number of the call that is timed.
TIMED_CALL = 3


@frozen(eq=False)
class StageCall:
    """Function of some values, by number, for others.

    `released` are the values without a later reader.
    """

    function: Callable[..., Sequence[Any]]
    compiled: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]


#: Result of a graph: the number of a value, or None and a constant.
StagedResult: TypeAlias = tuple[int | None, Any]


def stage_calls(
    graph: torch.fx.Graph, stages: Sequence[tuple[Subgraph, Callable[..., Sequence[Any]], bool]], results: Sequence[Any]
) -> tuple[tuple[StageCall, ...], tuple[StagedResult, ...]]:
    """Return the calls of a graph's stages, and its results.

    Values are numbered: the inputs of the graph, then the results of stages.
    """
    numbers = {node: number for number, node in enumerate(node for node in graph.nodes if node.op == "placeholder")}
    for stage, _, _ in stages:
        for node in stage.outputs:
            numbers.setdefault(node, len(numbers))
    found = tuple((numbers[r], None) if isinstance(r, torch.fx.Node) else (None, r) for r in results)
    last = {numbers[node]: at for at, (stage, _, _) in enumerate(stages) for node in stage.inputs}
    for number, _ in found:
        last.pop(-1 if number is None else number, None)
    calls = (
        StageCall(
            function,
            compiled,
            tuple(numbers[node] for node in stage.inputs),
            tuple(numbers[node] for node in stage.outputs),
            tuple(number for number, at in last.items() if at == position),
        )
        for position, (stage, function, compiled) in enumerate(stages)
    )
    return tuple(calls), found


class StagedFunction:
    """Function of a graph's inputs that runs its stages.

    It takes a list of arguments, which it empties, as PyTorch's compiled graphs do. `time_share` is the share of the
    time that PyTorch's stages take, None before it is measured; where `logged`, it is written to the log.
    """

    def __init__(self, calls: Sequence[StageCall], results: Sequence[StagedResult], device: torch.device) -> None:
        self.calls, self.results, self.device = tuple(calls), tuple(results), device
        self.time_share: float | None = None
        self.logged = False
        self._count = 0
        self._events: list[tuple[Any, ...]] = []

    def __call__(self, arguments: list[Any], observe: Callable[[int, Sequence[Any]], None] | None = None) -> list[Any]:
        """Run all stages on PyTorch's current stream; `observe` gets the operands of each."""
        values = dict(enumerate(arguments))
        arguments.clear()
        self._count += 1
        run = self._run_timed if self._count == TIMED_CALL and not is_capturing(self.device) else self._run
        for position, call in enumerate(self.calls):
            given = [values[number] for number in call.inputs]
            if observe is not None:
                observe(position, given)
            values |= zip(call.outputs, run(call, given), strict=True)
            for number in call.released:
                del values[number]
        if self._events and not is_capturing(self.device):
            self._read_times()
        return [fixed if number is None else values[number] for number, fixed in self.results]

    def _run(self, call: StageCall, given: list[Any]) -> Sequence[Any]:
        return call.function(*given)

    def _run_timed(self, call: StageCall, given: list[Any]) -> Sequence[Any]:
        if self.device.type != "cuda":
            start = perf_counter()
            found = call.function(*given)
            self._events.append((call.compiled, start, perf_counter()))
            return found
        make: Any = torch.cuda.Event
        events = [make(enable_timing=True) for _ in range(2)]
        events[0].record()
        found = call.function(*given)
        events[1].record()
        self._events.append((call.compiled, *events))
        return found

    def _read_times(self) -> None:
        """Compute the share of the time that PyTorch takes, once the device is done."""
        on_device = self.device.type == "cuda"
        if on_device and not self._events[-1][2].query():
            return
        times = [(c, begin.elapsed_time(end) if on_device else end - begin) for c, begin, end in self._events]
        self._events.clear()
        self.time_share = sum(t for compiled, t in times if not compiled) / (sum(t for _, t in times) or 1.0)
        if self.logged:
            _LOG.info("cuts: calls in PyTorch take %.0f %% of a graph's time", 100 * self.time_share)
