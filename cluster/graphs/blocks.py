"""Graphs of a transformer block, forward and backward.

`step_graphs.py` has the loss and the optimiser. A block's parameters are inputs of its graphs, not constants, so that
one compiled plan serves every layer. The backward pass is the derived gradient of the forward graph. It either
recomputes the forward pass from the block's input, or takes its saved values, which are then outputs of the forward
graph. Gradients are added to those of earlier micro-batches as they are computed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve, frozen

from ...compile import Spec, load_spec
from ...ir import Array, Attribute, Graph, Node, TensorType, live_graph, verify_graph
from ...ops.gradient import Gradients
from ...passes.graph import differentiate_graph
from ..plans import Transformer
from .drafts import GraphDraft
from .parameters import parameter_shapes


@frozen
class BlockGraphs:
    """Graphs of a block or of half a block, with their vocabulary.

    The vocabulary includes derived gradients.
    """

    forward: Graph
    backward: Graph | None
    saved: tuple[str, ...]
    spec: Spec


def block_passes(
    model: Transformer, micro: int, *, training: bool, recompute: bool, parts: int = 1
) -> tuple[BlockGraphs, ...]:
    """Return the graphs of a block for a micro-batch.

    Inputs are `x` and the parameters by name, the output is `y`. The backward graph takes `dy` and, for each parameter
    `w`, the sum so far as `w.sum`; it gives `dx` and `w.next`. Where `parts` GPUs share a layer there are two of
    each, attention and MLP: the parts of `y` and of `dx` of all GPUs are summed. Terms that are added once, not once a
    GPU, are multiplied by `share`, which is 1 on one of them and 0 on the others.
    """
    spec = load_spec(())
    return tuple(_passes(graph, spec, training, recompute) for graph in _graphs(model, micro, spec, parts))


def _passes(graph: Graph, spec: Spec, training: bool, recompute: bool) -> BlockGraphs:
    if not training:
        return BlockGraphs(verify_graph(graph, spec.instances.infer), None, (), spec)
    names = tuple(name for name in graph.inputs if name not in ("x", "share"))
    gradients = Gradients(spec.registry)
    loss = _with_loss(graph, spec)
    found = differentiate_graph(loss, gradients, "loss", ("x", "y", *names))
    spec = Spec(gradients.registry, {**spec.texts, **gradients.texts})
    whole, own = found.graph, {node.name for node in loss.nodes}
    # The gradient at `y` is `dy` times a tensor of ones, which would take as much memory as `dy`.
    back = [_replace_input(node, found.gradients["y"], "dy") for node in whole.nodes if node.name not in own]
    saved = () if recompute else _saved_values(loss, back)
    nodes = ([node for node in whole.nodes if node.name in own] if recompute else []) + back
    types, outputs = dict(whole.types), ["dx"]
    nodes.append(Node("dx", "identity", (found.gradients["x"],), ("dx",)))
    types["dx"] = types["x"]
    outputs += add_to_sums(names, found.gradients, types, nodes)
    inputs = (*graph.inputs, "dy", *(f"{name}.sum" for name in names), *saved)
    backward = live_graph(
        evolve(whole, name="backward", inputs=inputs, outputs=tuple(outputs), types=types, nodes=tuple(nodes))
    )
    backward = only_read_inputs(backward)
    forward = live_graph(evolve(graph, outputs=("y", *saved)))
    return BlockGraphs(
        verify_graph(forward, spec.instances.infer), verify_graph(backward, spec.instances.infer), saved, spec
    )


def _replace_input(node: Node, old: str, new: str) -> Node:
    """Replace an input of a node."""
    return evolve(node, inputs=tuple(new if value == old else value for value in node.inputs))


def add_to_sums(
    names: tuple[str, ...], gradients: Mapping[str, str], types: dict[str, TensorType], nodes: list[Node]
) -> list[str]:
    """Add each parameter's gradient to its sum.

    Return the names of the new sums.
    """
    for name in names:
        types |= {f"{name}.sum": types[name], f"{name}.next": types[name]}
        nodes.append(Node(f"{name}.next", "add", (gradients[name], f"{name}.sum"), (f"{name}.next",)))
    return [f"{name}.next" for name in names]


def only_read_inputs(graph: Graph) -> Graph:
    """Drop inputs that no node reads."""
    read = {value for node in graph.nodes for value in node.operands}
    inputs = tuple(name for name in graph.inputs if name in read)
    return evolve(
        graph, inputs=inputs, types={n: t for n, t in graph.types.items() if n in inputs or n not in graph.inputs}
    )


def _saved_values(graph: Graph, back: list[Node]) -> tuple[str, ...]:
    """Return the computed values of the forward pass that the backward pass reads."""
    computed = {value for node in graph.nodes for value in node.outputs}
    return tuple(dict.fromkeys(v for node in back for v in node.operands if v in computed and v != "y"))


def _with_loss(graph: Graph, spec: Spec) -> Graph:
    """Add `sum(y * dy)`, whose gradients are those of a loss that has the gradient `dy` at `y`."""
    made = GraphDraft(
        "pair", {**{name: graph.types[name] for name in graph.inputs}, "dy": graph.types["y"]}, list(graph.nodes)
    )
    made.constants = dict(graph.constants)
    rank = len(graph.types["y"].shape)
    made.op("loss", "reduce_sum", made.op("product", "mul", "y", "dy"), axes=tuple(range(rank)), keepdims=False)
    return made.finish(("loss",), spec)


#: Operations of nonlinear functions, with their attributes.
_NONLINEARITIES: Mapping[str, tuple[str, dict[str, Attribute]]] = {
    "gelu": ("gelu", {}),
    "gelu_tanh": ("gelu", {"approximate": "tanh"}),
    "relu": ("relu", {}),
    "silu": ("swish", {}),
}


def add_norm(made: GraphDraft, model: Transformer, x: str, name: str) -> str:
    """Add a norm of the last axis with a name's parameters."""
    epsilon = model.epsilon
    if model.has_rms_norms:
        return made.op(f"{name}.normed", "rms_norm", x, name, axis=-1, epsilon=epsilon)
    return made.op(f"{name}.normed", "layer_norm", x, name, f"{name}.bias", axis=-1, epsilon=epsilon)


class _Block:
    """Block under construction; a GPU that shares the layer with others has a part of the heads and of the neurons."""

    def __init__(self, model: Transformer, micro: int, parts: int, names: tuple[str, ...]) -> None:
        self.model, self.parts = model, parts
        self.tokens = (micro, model.sequence, model.hidden)
        shapes = {name: shape for name, shape in parameter_shapes(model, parts).items() if name in names}
        inputs = {"x": self.tokens, **shapes} | ({"share": ()} if parts > 1 else {})
        self.made = GraphDraft("block", {name: TensorType(model.dtype, shape) for name, shape in inputs.items()})

    def dense(self, x: str, name: str) -> str:
        product, bias = self.made.op(f"{name}.product", "matmul", x, name), f"{name}.bias"
        return self.made.op(f"{name}.shifted", "add", product, bias) if bias in self.made.inputs else product

    def norm(self, x: str, name: str) -> str:
        return add_norm(self.made, self.model, x, name)

    def heads(self, x: str, name: str, count: int) -> str:
        shape = (*self.tokens[:2], count // self.parts, self.model.head_elements)
        split = self.made.op(f"{name}.split", "reshape", self.dense(x, name), shape=shape)
        return self.made.op(f"{name}.heads", "transpose", split, perm=(0, 2, 1, 3))

    def attention(self, x: str) -> str:
        """Add attention without its last matrix."""
        model, made = self.model, self.made
        x = x if model.post_norm else self.norm(x, "norm1")
        q = self.heads(x, "query", model.heads)
        k, v = (self.heads(x, name, model.groups) for name in ("key", "value"))
        if model.position_kind == "rotary":
            made.constants |= dict(zip(("cosine", "sine"), _angles(model), strict=True))
            q, k = (made.op(f"{name}.turned", "rotary", name, "cosine", "sine") for name in (q, k))
        mixed = made.op("attention", "attention", q, k, v, causal=model.causal)
        merged = made.op("merged", "transpose", mixed, perm=(0, 2, 1, 3))
        return made.op("joined", "reshape", merged, shape=(*self.tokens[:2], model.queries // self.parts))

    def neurons(self, x: str) -> str:
        """Add the MLP without its last matrix."""
        made, inner = self.made, x if self.model.post_norm else self.norm(x, "norm2")
        op, attributes = _NONLINEARITIES[self.model.nonlinearity]
        if not self.model.gated:
            return made.op("wide", op, self.dense(inner, "up"), **attributes)
        gate = made.op("gated", op, self.dense(inner, "gate"), **attributes)
        return made.op("wide", "mul", gate, self.dense(inner, "up"))

    def shared_end(self, inner: str, name: str) -> None:
        """Add the last matrix of a half.

        Terms that every GPU would add to the sum are added by one of them.
        """
        made = self.made
        kept = made.op("kept", "add", "x", f"{name}.bias") if self.model.biases else "x"
        made.op("y", "add", made.op(f"{name}.product", "matmul", inner, name), made.op("own", "mul", kept, "share"))


def _graphs(model: Transformer, micro: int, spec: Spec, parts: int) -> list[Graph]:
    names = tuple(parameter_shapes(model))
    if parts == 1:
        whole = _Block(model, micro, 1, names)
        middle = whole.made.op("middle", "add", "x", whole.dense(whole.attention("x"), "output"))
        middle = whole.norm(middle, "norm1") if model.post_norm else middle
        last = whole.made.op(
            "last" if model.post_norm else "y", "add", middle, whole.dense(whole.neurons(middle), "down")
        )
        if model.post_norm:
            whole.made.op("y", "identity", whole.norm(last, "norm2"))
        return [whole.made.finish(("y",), spec)]
    second = tuple(name for name in names if name.partition(".")[0] in ("up", "gate", "down", "norm2"))
    first = _Block(model, micro, parts, tuple(name for name in names if name not in second))
    first.shared_end(first.attention("x"), "output")
    latter = _Block(model, micro, parts, second)
    latter.shared_end(latter.neurons("x"), "down")
    return [half.made.finish(("y",), spec) for half in (first, latter)]


def _angles(model: Transformer) -> tuple[Array, Array]:
    """Return cosines and sines of positions, [1, 1, sequence, half of a head] (Su et al., RoFormer, 2021)."""
    half = model.head_elements // 2
    turns = np.arange(model.sequence)[:, None] * model.theta ** (-np.arange(half) / half)
    kind = model.dtype.numpy
    return np.cos(turns).astype(kind)[None, None], np.sin(turns).astype(kind)[None, None]
