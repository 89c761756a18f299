"""Rematerialisation: computes values again before later readers, to save memory.

    %h = relu(%x)                              %h = relu(%x)
    %y = matmul(%h, %w)                        %y = matmul(%h, %w)
    ...                                  ->    ...
    %w.grad = matmul_grad(%h, %y.grad)         %h.again = relu(%x)
                                               %w.grad = matmul_grad(%h.again, %y.grad)

Where the live values take more than the available memory, the value is rematerialised that costs the fewest bytes of
traffic for each byte that it frees, until the rest fits. A value can be rematerialised where its node is pointwise,
except for sums of a row or a channel, which are small and are stored. Its operands are live at that node, or can be
rematerialised themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from attrs import define, evolve, field, frozen

from ...ir import Graph, Node, PassError, fresh_name
from ...ops.language import Instances

#: Ratio of bytes above which the smaller of two values counts as small.
MIN_SIZE_RATIO = 16
#: Limit of the nodes that are computed again for one value.
MAX_RECOMPUTED_NODES = 4


@frozen
class Recomputation:
    """Rematerialisation of a value before the node at `place`.

    It copies `nodes`, by their positions in order, moves `moved` bytes, and frees others.
    """

    value: str
    place: int
    nodes: tuple[int, ...]
    moved: int
    freed: int

    @property
    def cost_per_byte(self) -> float:
        """Bytes moved for each byte freed."""
        return self.moved / self.freed


@define
class Rematerialise:
    """Rematerialise values where the graph needs more than `memory` bytes at once.

    `moved` is the added memory traffic in bytes, `peaks` the peak bytes of live values, before and after.
    """

    name: ClassVar[str] = "recompute"
    instances: Instances
    memory: int
    moved: int = 0
    again: list[str] = field(factory=list)
    peaks: tuple[int, int] = (0, 0)

    def run(self, graph: Graph) -> Graph:
        """Return the graph that fits.

        Raises `PassError` where no value is left to rematerialise.
        """
        life = _Lives(graph, self.instances)
        before = life.peak[1]
        while life.peak[1] > self.memory:
            choices = list(life.choices())
            if not choices:
                raise PassError(
                    f"expected values within {self.memory} bytes, found none below about {life.peak[1]}; "
                    f"kept alone, values take about {before}"
                )
            best = min(choices, key=lambda choice: (choice.cost_per_byte, -choice.freed))
            self.moved += best.moved
            self.again.append(best.value)
            graph = _with_copies(graph, best)
            life = _Lives(graph, self.instances)
        self.peaks = (before, life.peak[1])
        return graph


@define
class _Lives:
    """Live ranges of values."""

    graph: Graph
    instances: Instances
    makers: dict[str, int] = field(factory=dict)
    uses: dict[str, list[int]] = field(factory=dict)
    peak: tuple[int, int] = (0, 0)  # the node with the most live bytes, and their number

    def __attrs_post_init__(self) -> None:
        graph, end = self.graph, len(self.graph.nodes)
        for place, node in enumerate(graph.nodes):
            self.makers.update(dict.fromkeys(node.outputs, place))
            for value in dict.fromkeys(node.operands):
                self.uses.setdefault(value, []).append(place)
        for value in graph.outputs:
            self.uses.setdefault(value, []).append(end)
        change = np.zeros(end + 2, np.int64)
        for value in (*graph.inputs, *self.makers):
            change[max(self.makers.get(value, 0), 0)] += graph.types[value].nbytes
            change[self.last(value) + 1] -= graph.types[value].nbytes
        alive = np.cumsum(change)[:-1] + sum(array.nbytes for array in graph.constants.values())
        self.peak = int(alive.argmax()), int(alive.max())

    def last(self, value: str) -> int:
        """Position of the last reader."""
        return self.uses.get(value, [self.makers.get(value, 0)])[-1]

    def choices(self) -> list[Recomputation]:
        """Return the possible rematerialisations after the peak."""
        return [choice for value in self.makers if (choice := self._choice(value)) is not None]

    def _choice(self, value: str) -> Recomputation | None:
        place, nbytes = self.peak[0], self.graph.types[value].nbytes
        readers = self.uses.get(value, [])
        later = next((reader for reader in readers if reader > place), None)
        touched = {self.makers[value], *readers}
        if later is None or later == len(self.graph.nodes) or place in touched or self.makers[value] > place:
            return None
        nodes: dict[int, None] = {}
        leaves: dict[str, None] = {}
        if not self._collect_copies(value, later, nbytes, nodes, leaves) or len(nodes) > MAX_RECOMPUTED_NODES:
            return None
        moved = nbytes + sum(self.graph.types[leaf].nbytes for leaf in leaves)
        return Recomputation(value, later, tuple(sorted(nodes)), moved, nbytes)

    def _collect_copies(
        self, value: str, later: int, nbytes: int, nodes: dict[int, None], leaves: dict[str, None]
    ) -> bool:
        """Collect the nodes that compute a value again and the values they read; return whether that is possible."""
        place = self.makers[value]
        if place in nodes:
            return True
        node = self.graph.nodes[place]
        if len(nodes) >= MAX_RECOMPUTED_NODES or not self._light(node, value):
            return False
        nodes[place] = None
        for operand in node.operands:
            if self._is_live(operand, later, nbytes):
                leaves[operand] = None
            elif operand not in self.makers or not self._collect_copies(operand, later, nbytes, nodes, leaves):
                return False
        return True

    def _is_live(self, value: str, later: int, nbytes: int) -> bool:
        """Return whether a value is live at a node, or small enough to be stored until then."""
        if value in self.graph.constants or self.graph.types[value].nbytes * MIN_SIZE_RATIO <= nbytes:
            return True
        return self.last(value) >= later

    def _light(self, node: Node, value: str) -> bool:
        """Return whether a node is pointwise, except for sums that are small beside the value."""
        instance = self.instances.of_node(node, self.graph)
        size = self.graph.types[value].size
        tensors: Mapping[str, object] = instance.program.tensors
        return bool(tensors) and all(
            s.is_pointwise or instance.program.tensors[s.target].size * MIN_SIZE_RATIO <= size
            for s in instance.program.statements
        )


def _with_copies(graph: Graph, again: Recomputation) -> Graph:
    """Return a graph whose later readers of a value read a copy, computed before the first of them."""
    types, renamed = dict(graph.types), dict[str, str]()
    names = {node.name for node in graph.nodes}
    copies = []
    for place in again.nodes:
        node = graph.nodes[place]
        outputs = []
        for value in node.outputs:
            renamed[value] = fresh_name(types, f"{value}.again")
            types[renamed[value]] = types[value]
            outputs.append(renamed[value])
        name = fresh_name(names, f"{node.name}.again")
        names.add(name)
        copies.append(evolve(_reading(node, renamed), name=name, outputs=tuple(outputs)))
    only = {again.value: renamed[again.value]}
    later = [_reading(node, only) for node in graph.nodes[again.place :]]
    return evolve(graph, types=types, nodes=(*graph.nodes[: again.place], *copies, *later))


def _reading(node: Node, renamed: Mapping[str, str]) -> Node:
    inputs = tuple(None if value is None else renamed.get(value, value) for value in node.inputs)
    return node if inputs == node.inputs else evolve(node, inputs=inputs)
