"""Conversion of inference graphs to training form.

Norms use the batch's own statistics, and dropout drops elements.

    batch_norm(x, scale, bias, mean, var)  ->  y, mean.next, var.next = batch_norm_training(x, scale, bias, mean, var)
    dropout(x)                             ->  y, kept = dropout_training(x, seed * count + number)

The vocabulary defines the operations that differ in training: `X` does where `X_training` is declared. Its operands are
those of `X` by their names; a result `running_v` is the operand `v` of the next step; an operand of type `u32[]` that
`X` lacks is a seed, another one for each such node and each step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import define, evolve, field, frozen

from ..ir import Array, Attribute, DType, Graph, Node, TensorType, UsageError, fresh_name, quote, verify_graph
from ..ops import OpDecl, Registry

_SUFFIX, _RUNNING = "_training", "running_"


@frozen
class TrainingForm:
    """Graph in training form, with updates after each step.

    The `updates` of `grad` replace its running statistics and its seed.
    """

    graph: Graph
    updates: Mapping[str, str]


def in_training(
    graph: Graph, *, seed: int = 0, registry: Registry | None = None, **attributes: Attribute
) -> TrainingForm:
    """Convert an inference graph to training form.

    `attributes` are given to the operations that have them, such as `momentum` and `unbiased` to batch norms (PyTorch's
    are 0.9 and true).

    Raises `UsageError` where no operation that differs in training has such an attribute.
    """
    vocabulary = registry or Registry.builtin()
    known = {name for op in vocabulary if op.endswith(_SUFFIX) for name in vocabulary[op].attributes}
    for name in sorted(set(attributes) - known):
        raise UsageError(
            f"no operation that differs in training has an attribute {quote(name)}",
            hint=f"attributes are: {', '.join(sorted(known))}",
        )
    return _TrainingConversion(graph, vocabulary, seed, attributes).run()


@define
class _TrainingConversion:
    graph: Graph
    registry: Registry
    seed: int
    attributes: Mapping[str, Attribute]
    types: dict[str, TensorType] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    constants: dict[str, Array] = field(factory=dict)
    updates: dict[str, str] = field(factory=dict)
    streams: list[str] = field(factory=list)  # seeds, one for each stream of random numbers

    def run(self) -> TrainingForm:
        self.types.update(self.graph.types)
        for node in self.graph.nodes:
            form = self.registry.get(f"{node.op}{_SUFFIX}")
            self.nodes.append(node if form is None else self._training_node(node, self.registry[node.op], form))
        nodes = (*self._seeding(), *self.nodes)
        constants = {**self.graph.constants, **self.constants}
        whole = evolve(self.graph, types=self.types, nodes=nodes, constants=constants)
        return TrainingForm(verify_graph(whole, self.registry.instances.infer), self.updates)

    def _training_node(self, node: Node, decl: OpDecl, form: OpDecl) -> Node:
        given = dict(zip((operand.name for operand in decl.operands), node.inputs, strict=False))
        inputs = tuple(given.get(o.name) or self._seed() for o in form.operands)
        made = dict(zip((result.name for result in decl.results), node.outputs, strict=False))
        outputs = tuple(made.get(r.name) or fresh_name(self.types, f"{node.name}.{r.name}") for r in form.results)
        self.types.update(dict.fromkeys(outputs, TensorType(DType.F32, ())))  # until they are inferred
        own = {name: value for name, value in node.attributes.items() if name in form.attributes}
        own |= {name: value for name, value in self.attributes.items() if name in form.attributes}
        trained = Node(node.name, form.name, inputs, outputs, own, node.origin, span=node.span)
        found = self.registry.instances.infer(trained, [None if v is None else self.types[v] for v in inputs])
        self.types.update(zip(outputs, found, strict=True))
        for result, value in zip(form.results, outputs, strict=True):
            source = given.get(result.name.removeprefix(_RUNNING)) if result.name.startswith(_RUNNING) else None
            self.updates |= {source: value} if source is not None else {}
        return trained

    # ---- seeds

    def _seed(self) -> str:
        """Return the seed of one more stream of random numbers."""
        self.streams.append(self._scalar("seed.stream"))
        return self.streams[-1]

    def _seeding(self) -> list[Node]:
        """Return the nodes that make a seed for each stream of the number of the step, and the next number."""
        if not self.streams:
            return []
        seed, following = self._scalar("seed", self.seed), self._scalar("seed.next")
        self.updates[seed] = following
        count, base = self._scalar("seed.count", len(self.streams)), self._scalar("seed.base")
        nodes = [Node("seed.base", "mul", (seed, count), (base,))]
        for number, stream in enumerate(self.streams):
            nodes.append(Node(stream, "add", (base, self._scalar("seed.number", number)), (stream,)))
        return [*nodes, Node("seed.next", "add", (seed, self._scalar("seed.one", 1)), (following,))]

    def _scalar(self, hint: str, value: int | None = None) -> str:
        """Return the name of a new number, a constant where it has a value."""
        name = fresh_name(self.types, hint)
        self.types[name] = TensorType(DType.U32, ())
        if value is not None:
            self.constants[name] = np.asarray(value, np.uint32)
        return name
