"""Choice of algorithms: a node stays as it is, or one of the algorithms that its declaration lists takes its place.

Each alternative becomes a small graph of its own, with the pointwise nodes that follow it, as they fuse into its last kernel. It is cut
into groups like any graph and costs what its groups cost; nodes that only depend on constants (transformed filters) are computed by
the compiler and cost nothing. The cheapest takes the node's place, the node itself where none is cheaper. Equal nodes are decided once.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from math import inf

from attrs import evolve, field, frozen

from ..ir.compiled import Mode
from ..ir.errors import CutsError
from ..ir.graph import Graph, Node
from ..ir.types import TensorType
from ..ops.inference import Instances
from .groups import Workshop
from .legality import Policy
from .partition import Evaluator, Partitioner, partition
from .programs import build_programs
from .rewrite import fresh_name, prune
from .views import find_views

#: Most nodes behind one that are looked at with it.
FOLLOWERS = 4
#: Part of the time that an alternative has to save: it needs more memory and rounds more.
MARGIN = 0.05


@frozen
class Choice:
    """What was decided for a node: seconds of every alternative by its name, the declaration itself under "", and the name of the best."""

    node: str
    seconds: Mapping[str, float]

    @property
    def best(self) -> str:
        """The name of the cheapest alternative, "" where none saves enough."""
        name = min(self.seconds, key=lambda n: (self.seconds[n], n))
        return name if self.seconds[name] < (1 - MARGIN) * self.seconds[""] else ""


@frozen
class ChooseAlgorithms:
    """Replaces nodes by their cheapest algorithms; `choices` lists what was compared, `used` the algorithm of each new node."""

    instances: Instances
    evaluator: Evaluator
    policy: Policy
    mode: Mode
    choices: list[Choice] = field(factory=list)
    used: dict[str, str] = field(factory=dict)
    known: dict[Hashable, Mapping[str, float]] = field(factory=dict)

    def run(self, graph: Graph) -> Graph:
        """Return the graph with the chosen algorithms in it."""
        self.choices.clear()
        self.known.clear()
        self.used.clear()
        result = graph
        for node in graph.nodes:
            alternatives = self.instances.of_node(node, graph).algorithms
            if not alternatives:
                continue
            choice = Choice(node.name, self._costs(node, graph, alternatives))
            self.choices.append(choice)
            if choice.best:
                before = {n.name for n in result.nodes}
                result = replace_node(result, node, choice.best, self.instances)
                self.used.update({n.name: choice.best for n in result.nodes if n.name not in before})
        return result

    def _costs(self, node: Node, graph: Graph, alternatives: Collection[str]) -> Mapping[str, float]:
        followers = _followers(node, graph, self.instances)
        part = _fragment((node, *followers), graph)
        fixed = frozenset(v for v in part.inputs if v in graph.constants)
        names = {v: n for n, v in enumerate(part.types)}
        members = tuple((n.op, tuple(names.get(v or "") for v in n.inputs), tuple(sorted(n.attributes.items()))) for n in part.nodes)
        key = (members, tuple(part.types.values()), tuple(sorted(names[v] for v in fixed)))
        if key not in self.known:
            costs = {"": self._seconds(part, fixed)}
            for name in alternatives:
                costs[name] = self._seconds(replace_node(part, node, name, self.instances), fixed)
            self.known[key] = costs
        return self.known[key]

    def _seconds(self, graph: Graph, fixed: Collection[str]) -> float:
        """Return the seconds of a small graph whose `fixed` inputs are known when it is compiled."""
        graph = _without_known(graph, set(fixed))
        try:
            views = find_views(build_programs(graph, self.instances.registry))
            workshop = Workshop(views, self.policy)
            partitioner = Partitioner(workshop, self.evaluator)
            return sum(partitioner.cost(group) for group in partition(partitioner, self.mode))
        except CutsError:
            return inf


def replace_node(graph: Graph, node: Node, algorithm: str, instances: Instances) -> Graph:
    """Return the graph with a node replaced by the steps of one of its algorithms."""
    instance = instances.of_node(node, graph)
    names = {f: v for f, v in zip(instance.inputs, node.inputs, strict=False) if f is not None and v is not None}
    names |= dict(zip(instance.outputs, node.outputs, strict=True))
    types: dict[str, TensorType] = dict(graph.types)
    taken = {n.name for n in graph.nodes}
    steps: list[Node] = []
    for number, step in enumerate(instance.algorithms[algorithm]):
        for value in step.outputs:
            if value not in names:
                names[value] = fresh_name(types, f"{node.name}.{algorithm}.{value}")
                types[names[value]] = TensorType(next(iter(instance.output_types)).dtype, ())  # reserves the name
        inputs = tuple(None if v is None else names[v] for v in step.inputs)
        made = evolve(step, name=fresh_name(taken, f"{node.name}/{algorithm}/{number}"), inputs=inputs, origin=node.origin or node.name)
        made = evolve(made, outputs=tuple(names[v] for v in step.outputs))
        taken.add(made.name)
        types.update(zip(made.outputs, instances.infer(made, [None if v is None else types[v] for v in inputs]), strict=True))
        steps.append(made)
    nodes = [n for old in graph.nodes for n in (steps if old.name == node.name else [old])]
    return evolve(graph, nodes=tuple(nodes), types=types)


def _followers(node: Node, graph: Graph, instances: Instances) -> tuple[Node, ...]:
    """Return the chain of pointwise nodes that a node's only result goes through and nothing else needs."""
    consumers = graph.consumers()
    chain: list[Node] = []
    while len(chain) < FOLLOWERS:
        (value, *others) = (chain[-1] if chain else node).outputs
        users = consumers[value]
        if others or len(users) != 1 or value in graph.outputs or len(users[0].outputs) != 1:
            break
        program = instances.of_node(users[0], graph).program
        same = graph.types[users[0].outputs[0]].size == graph.types[value].size
        if not same or not all(s.is_pointwise for s in program.statements):
            break
        chain.append(users[0])
    return tuple(chain)


def _fragment(nodes: Iterable[Node], graph: Graph) -> Graph:
    """Return a few consecutive nodes as a graph; all that they read from elsewhere is an input, the last result the output."""
    nodes = tuple(nodes)
    made = {v for n in nodes for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in nodes for v in n.operands if v not in made))
    types = {v: graph.types[v] for v in (*inputs, *(v for n in nodes for v in n.outputs))}
    return Graph(graph.name, inputs, nodes[-1].outputs, types, nodes)


def _without_known(graph: Graph, known: set[str]) -> Graph:
    """Drop nodes whose operands are all known when the graph is compiled; their results become inputs."""
    nodes: list[Node] = []
    for node in graph.nodes:
        if all(v in known for v in node.operands) and not set(node.outputs) & set(graph.outputs):
            known.update(node.outputs)
        else:
            nodes.append(node)
    read = dict.fromkeys(v for n in nodes for v in n.operands)
    made = {v for n in nodes for v in n.outputs}
    return prune(evolve(graph, nodes=tuple(nodes), inputs=tuple(v for v in read if v not in made)))
