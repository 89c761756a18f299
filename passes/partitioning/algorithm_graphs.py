"""Graphs of nodes with other algorithms, and with their followers."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import evolve

from ...ir import Graph, Node, TensorType
from ...ops.language import Instances
from ..graph import fresh_name, prune

#: Pointwise nodes that are considered together with the node that they follow.
MAX_FOLLOWERS = 4


def replace_node(graph: Graph, node: Node, algorithm: str, instances: Instances) -> Graph:
    """Return the graph with a node replaced by an algorithm's steps.

    Steps of other operations that have an algorithm of the same name take it.
    """
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
        made = evolve(
            step,
            name=fresh_name(taken, f"{node.name}/{algorithm}/{number}"),
            inputs=inputs,
            origin=node.origin or node.name,
        )
        made = evolve(made, outputs=tuple(names[v] for v in step.outputs))
        taken.add(made.name)
        types.update(
            zip(made.outputs, instances.infer(made, [None if v is None else types[v] for v in inputs]), strict=True)
        )
        steps.append(made)
    nodes = [n for old in graph.nodes for n in (steps if old.name == node.name else [old])]
    result = evolve(graph, nodes=tuple(nodes), types=types)
    for step in steps:
        if step.op != node.op and algorithm in instances.of_node(step, result).algorithms:
            result = replace_node(result, step, algorithm, instances)
    return result


def with_followers(node: Node, graph: Graph, instances: Instances) -> Graph:
    """Return the graph of a node and its followers.

    They are the chain of pointwise nodes that alone reads its only result.
    """
    consumers = graph.consumers()
    chain: list[Node] = []
    while len(chain) < MAX_FOLLOWERS:
        (value, *others) = (chain[-1] if chain else node).outputs
        users = consumers[value]
        if others or len(users) != 1 or value in graph.outputs or len(users[0].outputs) != 1:
            break
        program = instances.of_node(users[0], graph).program
        same = graph.types[users[0].outputs[0]].size == graph.types[value].size
        if not same or not all(s.is_pointwise for s in program.statements):
            break
        chain.append(users[0])
    return subgraph_of((node, *chain), graph)


def subgraph_of(nodes: Iterable[Node], graph: Graph) -> Graph:
    """Return consecutive nodes as a graph that returns the last result."""
    nodes = tuple(nodes)
    made = {v for n in nodes for v in n.outputs}
    inputs = tuple(dict.fromkeys(v for n in nodes for v in n.operands if v not in made))
    types = {v: graph.types[v] for v in (*inputs, *(v for n in nodes for v in n.outputs))}
    return Graph(graph.name, inputs, nodes[-1].outputs, types, nodes)


def without_known(graph: Graph, known: set[str]) -> Graph:
    """Drop nodes whose operands are all constant at compile time.

    Their results become inputs.
    """
    nodes: list[Node] = []
    for node in graph.nodes:
        if all(v in known for v in node.operands) and not set(node.outputs) & set(graph.outputs):
            known.update(node.outputs)
        else:
            nodes.append(node)
    read = dict.fromkeys(v for n in nodes for v in n.operands)
    made = {v for n in nodes for v in n.outputs}
    return prune(evolve(graph, nodes=tuple(nodes), inputs=tuple(v for v in read if v not in made)))
