"""Repeated layers: equal runs of nodes, one after another.

    x -> A1 -> A2 -> A3 -> ... -> A36 -> y      ->      x -> A1 -> A2 -> A35 -> A36 -> y

A layer repeats the one before it where each node is equal to the one a layer earlier, and each operand is the same
value, the value of the node a layer earlier, or a further input or equal constant that no other layer reads. Integers
that a layer hands to the next one are no repetition: passes derive ranges of them. The whole graph has the kernels of
one with fewer layers; `partitioning/repeated_groups.py` inserts their groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property

from attrs import evolve, field, frozen

from ...ir import Graph, Node, attributes_key, live_graph

#: Layers at the begin and at the end that a shortened graph keeps. The first and the last one are fused with their
#: surroundings, those between must have equal groups.
KEPT_FIRST, KEPT_LAST = 2, 2
#: Least number of layers, and of nodes of the others, that are worth a search for equal groups.
MIN_LAYERS, MIN_REMOVED_NODES = 6, 60
#: Nodes in a row whose repetition suggests a distance, and the number of distances that are tried.
WINDOW_NODES, MAX_DISTANCES = 8, 4
#: Largest constant in bytes that is compared with those of other layers.
MAX_COMPARED_BYTES = 4096


@frozen
class Place:
    """Place of a value or node: name in the first layer, layer."""

    root: str
    layer: int


@frozen(eq=False)
class RepeatedLayers:
    """Layers of a graph: `count` runs of `size` nodes from node `first`.

    `inputs` are the places of inputs and constants that one layer reads.
    """

    graph: Graph
    first: int
    size: int
    count: int
    inputs: Mapping[str, Place] = field(repr=False)

    @property
    def removed(self) -> int:
        """Number of layers that a shortened graph lacks."""
        return self.count - KEPT_FIRST - KEPT_LAST

    @cached_property
    def places(self) -> Mapping[str, Place]:
        """Places of the values of layers."""
        roots, found = self._layer(0), dict(self.inputs)
        for layer in range(self.count):
            for root, node in zip(roots, self._layer(layer), strict=True):
                found.update({v: Place(r, layer) for r, v in zip(root.outputs, node.outputs, strict=True)})
        return found

    @cached_property
    def _nodes(self) -> Mapping[str, Place]:
        """Places of the nodes of layers, by name."""
        pairs = ((n, zip(self._layer(0), self._layer(n), strict=True)) for n in range(self.count))
        return {node.name: Place(root.name, layer) for layer, both in pairs for root, node in both}

    @cached_property
    def _names(self) -> Mapping[Place, str]:
        return {place: name for name, place in self._nodes.items()}

    def kept_place(self, place: Place) -> Place:
        """Return a place in the shortened graph."""
        late = place.layer >= KEPT_FIRST + self.removed
        return Place(place.root, place.layer - self.removed) if late else place

    def moved_node(self, name: str, by: int) -> str:
        """Return the whole graph's node for one of the shortened graph.

        A node of a layer moves by some layers, another one stays.
        """
        if (place := self._nodes.get(name)) is None:
            return name
        kept = self.kept_place(place)
        return self._names.get(Place(kept.root, kept.layer + by), name)

    def copy_for_nodes(self, known: Mapping[str, str]) -> dict[str, str]:
        """Return the whole graph's facts about nodes for the shortened graph's."""
        found: dict[str, str] = {}
        for name, fact in known.items():
            place = self._nodes.get(name)
            layer = 0 if place is None else self.kept_place(place).layer
            last = 0 if layer < KEPT_FIRST - 1 else self.removed
            first = 0 if layer < KEPT_FIRST else last
            found |= {self.moved_node(name, by): fact for by in range(first, last + 1)}
        return found

    def shorten(self) -> Graph | None:
        """Return the graph without its middle layers.

        None where another node, or not every layer's neighbour, uses their values.
        """
        start, end = (self.first + self.size * n for n in (KEPT_FIRST, KEPT_FIRST + self.removed))
        graph, distance = self.graph, end - start
        dropped = {v: self.places[v].layer for node in graph.nodes[start:end] for v in node.outputs}
        dropped |= {v: p.layer for v, p in self.inputs.items() if KEPT_FIRST <= p.layer < KEPT_FIRST + self.removed}
        last = self.first + self.size * self.count
        nodes = list(graph.nodes[:start])
        for n, node in enumerate(graph.nodes[end:], end):
            if dropped.keys().isdisjoint(node.operands):
                nodes.append(node)
            elif n >= last:
                return None
            else:
                before = graph.nodes[n - distance].inputs
                pairs = zip(node.inputs, before, strict=True)
                nodes.append(evolve(node, inputs=tuple(old if new in dropped else new for new, old in pairs)))
        updates = graph.interface.updates
        outputs = {o: self.places[o] for o in graph.outputs if o in self.places}
        returned = [frozenset(p.root for p in outputs.values() if p.layer == n) for n in range(1, self.count - 1)]
        moved = [(old in dropped, new in dropped) for old, new in updates.items()]
        if len({*returned}) > 1 or any(old != new for old, new in moved):
            return None
        kept = {old: new for old, new in updates.items() if old not in dropped}
        short = evolve(
            graph,
            inputs=tuple(v for v in graph.inputs if v not in dropped),
            outputs=tuple(v for v in graph.outputs if v not in dropped),
            nodes=tuple(nodes),
            interface=evolve(graph.interface, updates=kept),
        )
        return live_graph(short)

    def _layer(self, number: int) -> Sequence[Node]:
        start = self.first + self.size * number
        return self.graph.nodes[start : start + self.size]


def find_repeated_layers(graph: Graph) -> RepeatedLayers | None:
    """Return the layers whose removal saves most nodes, if many are equal."""
    keys = [_key(node, graph) for node in graph.nodes]
    found = [layers for distance in _distances(keys) if (layers := _Search(graph, keys, distance).run()) is not None]
    best = max(found, key=lambda layers: layers.removed * layers.size, default=None)
    return best if best and best.removed * best.size >= MIN_REMOVED_NODES else None


def _key(node: Node, graph: Graph) -> Hashable:
    operands = tuple(None if v is None else (graph.types[v], v in graph.constants) for v in node.inputs)
    results = tuple(graph.types[v] for v in node.outputs)
    return node.op, node.declaration, attributes_key(node.attributes), operands, results


def _distances(keys: Sequence[Hashable]) -> Iterator[int]:
    """Yield the most frequent distances of equal runs of nodes."""
    numbers: dict[Hashable, int] = {}
    short = [numbers.setdefault(key, len(numbers)) for key in keys]
    last, counts = dict[tuple[int, ...], int](), Counter[int]()
    for place in range(len(short) - WINDOW_NODES):
        window = tuple(short[place : place + WINDOW_NODES])
        if window in last:
            counts[place - last[window]] += 1
        last[window] = place
    yield from (distance for distance, _ in counts.most_common(MAX_DISTANCES))


class _Search:
    """Search for the longest run of nodes that repeat those `size` nodes before."""

    def __init__(self, graph: Graph, keys: Sequence[Hashable], size: int) -> None:
        self.graph, self.keys, self.size = graph, keys, size
        self.position = {value: n for n, node in enumerate(graph.nodes) for value in node.outputs}
        self.start = size
        self.inputs: dict[str, Place] = {}
        self.known: dict[Place, str] = {}

    def run(self) -> RepeatedLayers | None:
        """Return the longest run of layers."""
        best, nodes = None, self.graph.nodes
        for n in range(self.size, len(nodes) + 1):
            if n < len(nodes) and self._repeats(n):
                continue
            count = (n - self.start) // self.size + 1
            if count >= MIN_LAYERS and (best is None or count > best.count):
                inputs = {value: place for value, place in self.inputs.items() if place.layer < count}
                layers = RepeatedLayers(self.graph, self.start - self.size, self.size, count, inputs)
                best = layers if self._reads_alone(layers) else best
            self.start, self.inputs, self.known = n + 1, {}, {}
        return best

    def _repeats(self, n: int) -> bool:
        """Return whether a node repeats the one a layer before."""
        node, before = self.graph.nodes[n], self.graph.nodes[n - self.size]
        if self.keys[n] != self.keys[n - self.size]:
            return False
        layer = (n - self.start) // self.size
        return all(self._follows(old, new, layer) for old, new in zip(before.inputs, node.inputs, strict=True))

    def _follows(self, old: str | None, new: str | None, layer: int) -> bool:
        """Return whether an operand is that of the layer before, moved by one layer."""
        if old is None or new is None:
            return old is new
        place, earlier = self.position.get(new), self.position.get(old)
        if new == old:
            return new not in self.inputs and (place is None or place < self.start)
        if place is not None or earlier is not None:
            carried = place is not None and (place - self.start) // self.size < layer
            counts = carried and not self.graph.types[new].dtype.is_float
            return place is not None and earlier == place - self.size and not counts
        root = self.inputs.setdefault(old, Place(old, layer)) if layer == 0 else self.inputs.get(old)
        if root is None or root.layer != layer or not self._is_same(old, new):
            return False
        moved = Place(root.root, layer + 1)
        return self.inputs.setdefault(new, moved) == moved and self.known.setdefault(moved, new) == new

    def _is_same(self, old: str, new: str) -> bool:
        """Return whether two values are inputs, or equal constants."""
        first, second = (self.graph.constants.get(v) for v in (old, new))
        if first is None or second is None:
            return first is second
        return first.nbytes <= MAX_COMPARED_BYTES and first.tobytes() == second.tobytes()

    def _reads_alone(self, layers: RepeatedLayers) -> bool:
        """Return whether only layers read their own inputs, and these are no outputs."""
        own = {*layers.inputs}
        last = layers.first + layers.size * layers.count
        around = (*self.graph.nodes[: layers.first], *self.graph.nodes[last:])
        return own.isdisjoint(self.graph.outputs) and all(own.isdisjoint(node.operands) for node in around)
