"""Launch sequence on a GPU as one CUDA graph, with updated arguments.

A graph may be launched on several streams: the driver begins one launch of it when the previous one has ended, so two
launches never use the memory of its kernels at the same time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from ...ir import KernelFunction
from ..device import Device, Launch, owning_launch
from ..launch_sequence import MAX_RECORDED_LAUNCHES, LaunchSequence, SequencePlan, moved_blocks
from ..library import Routine
from .bindings import BindingsDriver
from .graph_edges import early_edges, extend_capture
from .graph_nodes import CopyNode, KernelNode, RoutineNode, SequenceNode


class CudaLaunchSequence(LaunchSequence):
    """Graph of kernels in order, or each after its dependencies.

    Nodes that touch a moved block are updated.
    """

    def __init__(
        self,
        driver: BindingsDriver,
        arch: str,
        plan: SequencePlan,
        kernels: Sequence[KernelFunction],
        loaded: Sequence[Any],
        find_device: Callable[[], Device],
        bound: Sequence[Launch | None] | None = None,
    ) -> None:
        """Routines of libraries are bound to a device, unless their launches are `bound` for good."""
        self.driver, self.plan, self._arch = driver, plan, arch
        self._fixed: Sequence[int] = ()
        self._addresses: list[int] = []
        self._before, self._after = ([CopyNode(driver, each) for each in part] for part in (plan.before, plan.after))
        self._launched: list[SequenceNode | None] = []
        for (number, turn), launch in zip(plan.order, bound or [None] * len(plan.order), strict=True):
            call = plan.calls[number]
            kernel, code, places = kernels[call.kernel], loaded[call.kernel], call.iterations[turn]
            node: SequenceNode | None = None
            if isinstance(code, Routine):
                node = RoutineNode(driver, find_device, code, kernel, places, launch)
            elif 0 not in kernel.grid:
                node = KernelNode(driver, code.function, kernel, places, call.evict_first)
            self._launched.append(node)
        self._nodes: list[SequenceNode] = [*self._before, *(n for n in self._launched if n is not None), *self._after]
        self._touching: dict[int, list[int]] = defaultdict(list)
        for number, node in enumerate(self._nodes):
            for block in {place.block for place in node.places}:
                self._touching[block].append(number)
        self._added: list[Any] = []
        self._executable: Any = None
        self._last: tuple[int, Any] | None = None

    def launch(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Update moved addresses, and launch the graph."""
        if not self._nodes:
            return
        cu = self.driver.cu
        cu.cuCtxPushCurrent(self.driver.context)  # a context manager takes a microsecond more
        try:
            if len(self._nodes) > MAX_RECORDED_LAUNCHES:
                self._launch_each((*fixed, *moving), stream)
                return
            if self._executable is None:
                self._record(fixed, moving)
            else:
                self._rebind(fixed, moving)
            cu.cuGraphLaunch(self._executable, stream)
        finally:
            cu.bindings.cuCtxPopCurrent()

    def replay(self, addresses: Sequence[int], stream: Any, keep: object) -> Launch:
        """Return the launch of everything over blocks that never move."""
        with self.driver.push_context():
            self._record(addresses, ())
        return owning_launch((self, keep), self.driver.cu.cuGraphLaunch, self._executable, stream)

    def launch_captured(self, fixed: Sequence[int], moving: Sequence[int], stream: int) -> None:
        """Add the nodes with their edges to the graph of a stream."""
        addresses = (*fixed, *moving)

        def add(graph: Any, before: list[Any]) -> list[Any]:
            return self._add(graph, before, addresses)[1]

        routines = any(isinstance(node, RoutineNode) for node in self._nodes)
        with self.driver.push_context():
            if routines or not extend_capture(self.driver.cu, add, stream):
                for node in self._nodes:
                    node.launch(addresses, stream)

    def _record(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        cu = self.driver.cu
        self._fixed, self._addresses = fixed, [*fixed, *moving]
        graph = cu.cuGraphCreate(0)
        self._added, _ = self._add(graph, [], self._addresses)
        self._executable = cu.cuGraphInstantiate(graph, 0)
        # A running launch of it ends first; waiting for it is not allowed, as a stream may be recorded.
        self.driver.release(self, "cuGraphDestroy", graph)
        self.driver.release(self, "cuGraphExecDestroy", self._executable)

    def _add(self, graph: Any, before: list[Any], addresses: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Add all nodes to a graph after `before`; return them and the last ones.

        Kernels of another owner, in `before`, may end before their predecessors do, so no node is placed before theirs.
        """
        added: list[Any] = []
        add_early = early_edges(self.driver.cu, self._arch, len(self._nodes))
        own_kernels = set[Any]()

        def add_in_row(nodes: Sequence[SequenceNode], front: list[Any]) -> list[Any]:
            for node in nodes:
                waits = isinstance(node, KernelNode) and node.waits
                if waits and add_early and len(front) == 1 and front[0] in own_kernels:
                    made = node.add(graph, [], addresses)
                    add_early(graph, front[0], made)
                else:
                    made = node.add(graph, front, addresses)
                own_kernels.update([made] if isinstance(node, KernelNode) else [])
                added.append(made)
                front = [made]
            return front

        copied = add_in_row(self._before, before)
        count = len(self._launched)
        waits = self.plan.waits or [(n - 1,) if n else () for n in range(count)]
        ends: list[list[Any]] = []
        for node, each in zip(self._launched, waits, strict=True):
            front = _distinct_nodes(ends[number] for number in each) or copied
            ends.append(front if node is None else add_in_row([node], front))
        waited = {number for each in waits for number in each}
        last = _distinct_nodes(ends[number] for number in range(count) if number not in waited) or copied
        return added, add_in_row(self._after, last)

    def _rebind(self, fixed: Sequence[int], moving: Sequence[int]) -> None:
        first = self.plan.fixed
        gone = list(moved_blocks(self._addresses[first:], moving, first))
        if fixed is not self._fixed:
            gone += moved_blocks(self._addresses[:first], fixed)
            self._fixed = fixed
        if not gone:
            return
        for number, address in gone:
            self._addresses[number] = address
        for number in dict.fromkeys(n for block, _ in gone for n in self._touching[block]):
            self._nodes[number].update(self._executable, self._added[number], self._addresses)

    def _launch_each(self, addresses: Sequence[int], stream: int) -> None:
        """Launch a sequence that is too long for a graph; on another stream, after the last launch."""
        cu = self.driver.cu
        if self._last is None:
            self._last = stream, cu.cuEventCreate(2)  # without timing
        last, event = self._last
        if last != stream:
            cu.cuStreamWaitEvent(stream, event, 0)
        for node in self._nodes:
            node.launch(addresses, stream)
        cu.cuEventRecord(event, stream)
        self._last = stream, event


def _distinct_nodes(nodes: Iterable[list[Any]]) -> list[Any]:
    """Return each of some nodes once."""
    return list(dict.fromkeys(chain.from_iterable(nodes)))
