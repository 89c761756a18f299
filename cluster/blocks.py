"""A transformer block as graphs of ours: forward, backward, the loss at the end, a step of Adam.

A block's parameters are inputs of its graphs, not constants, so that one compiled plan serves every layer. The backward
pass is the derived gradient of the forward graph. It either computes the forward pass again from the block's input, or
takes the values of it that it needs, which the forward graph then gives out too. Gradients are added to those of
earlier micro-batches as they are computed.
"""

from __future__ import annotations

import math

import numpy as np
from attrs import define, evolve, field, frozen

from ..compile import Spec, load_spec
from ..ir import Array, Attribute, DType, Graph, Node, TensorType, UsageError, live_graph, verify_graph
from ..ops.gradient import Gradients
from ..passes.graph import differentiate_graph
from .describe import Transformer


def parameter_shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    """Return the parameters of a block by name, in the order in which they lie in a layer's file.

    Raises `UsageError` for heads that can not be turned in pairs.
    """
    hidden, keys, width = model.hidden, model.keys, model.width
    if model.gated and hidden // model.heads % 2:
        raise UsageError(
            f"{model.name}: heads: expected heads of an even width to run, found {hidden} / {model.heads}",
            hint="gated blocks turn pairs of a head's elements",
        )
    shapes: dict[str, tuple[int, ...]] = {
        "query": (hidden, hidden), "key": (hidden, keys), "value": (hidden, keys), "output": (hidden, hidden),
        "up": (hidden, width), "down": (width, hidden), "norm1": (hidden,), "norm2": (hidden,),
    }  # fmt: skip
    if model.gated:
        shapes["gate"] = (hidden, width)
    else:
        shapes |= {"norm1.bias": (hidden,), "norm2.bias": (hidden,)}
    if model.biases:
        shapes |= {f"{name}.bias": shapes[name][1:] for name in ("query", "key", "value", "output", "up", "down")}
        shapes |= {"gate.bias": (width,)} if model.gated else {}
    assert sum(map(math.prod, shapes.values())) == model.block_parameters
    return shapes


@frozen
class BlockGraphs:
    """The graphs of a block: what they compute, with the vocabulary that gradients needed."""

    forward: Graph
    backward: Graph | None
    saved: tuple[str, ...]
    spec: Spec


@define
class _Graph:
    """A graph under construction; types are inferred when it is finished."""

    name: str
    inputs: dict[str, TensorType]
    nodes: list[Node] = field(factory=list)
    constants: dict[str, Array] = field(factory=dict)

    def op(self, name: str, op: str, *inputs: str | None, **attributes: Attribute) -> str:
        self.nodes.append(Node(name, op, inputs, (name,), attributes))
        return name

    def finish(self, outputs: tuple[str, ...], spec: Spec) -> Graph:
        types = dict(self.inputs) | {name: _type(array) for name, array in self.constants.items()}
        for node in self.nodes:
            operands = [None if v is None else types[v] for v in node.inputs]
            types |= dict(zip(node.outputs, spec.instances.infer(node, operands), strict=True))
        return Graph(self.name, tuple(self.inputs), outputs, types, tuple(self.nodes), self.constants)


def _type(array: Array) -> TensorType:
    return TensorType(DType.F32, tuple(array.shape))


def f32(*shape: int) -> TensorType:
    """Return a type of fp32 elements."""
    return TensorType(DType.F32, shape)


def block_passes(model: Transformer, micro: int, *, training: bool, recompute: bool) -> BlockGraphs:
    """Return the graphs of a block for a micro-batch: inputs `x` and the parameters by name, output `y`.

    The backward graph takes `dy` and, for each parameter `w`, the sum so far as `w.sum`; it gives `dx` and `w.next`.
    """
    spec = load_spec(())
    graph = _block(model, micro, spec)
    if not training:
        return BlockGraphs(verify_graph(graph, spec.instances.infer), None, (), spec)
    names = tuple(parameter_shapes(model))
    gradients = Gradients(spec.registry)
    loss = _with_loss(graph, spec)
    found = differentiate_graph(loss, gradients, "loss", ("x", *names))
    spec = Spec(gradients.registry, {**spec.texts, **gradients.texts})
    whole, own = found.graph, {node.name for node in loss.nodes}
    back = [node for node in whole.nodes if node.name not in own]
    saved = () if recompute else _saved(loss, back)
    nodes = list(whole.nodes) if recompute else back
    types, outputs = dict(whole.types), ["dx"]
    nodes.append(Node("dx", "identity", (found.gradients["x"],), ("dx",)))
    types["dx"] = types["x"]
    for name in names:
        types |= {f"{name}.sum": types[name], f"{name}.next": types[name]}
        nodes.append(Node(f"{name}.next", "add", (found.gradients[name], f"{name}.sum"), (f"{name}.next",)))
        outputs.append(f"{name}.next")
    inputs = ("x", "dy", *names, *(f"{name}.sum" for name in names), *saved)
    backward = live_graph(
        evolve(whole, name="backward", inputs=inputs, outputs=tuple(outputs), types=types, nodes=tuple(nodes))
    )
    backward = _only_read(backward)
    forward = live_graph(evolve(graph, outputs=("y", *saved)))
    return BlockGraphs(
        verify_graph(forward, spec.instances.infer), verify_graph(backward, spec.instances.infer), saved, spec
    )


def _only_read(graph: Graph) -> Graph:
    """Drop inputs that no node reads."""
    read = {value for node in graph.nodes for value in node.operands}
    inputs = tuple(name for name in graph.inputs if name in read)
    return evolve(
        graph, inputs=inputs, types={n: t for n, t in graph.types.items() if n in inputs or n not in graph.inputs}
    )


def _saved(graph: Graph, back: list[Node]) -> tuple[str, ...]:
    """Return the computed values of the forward pass that the backward pass reads."""
    computed = {value for node in graph.nodes for value in node.outputs}
    return tuple(dict.fromkeys(v for node in back for v in node.operands if v in computed and v != "y"))


def _with_loss(graph: Graph, spec: Spec) -> Graph:
    """Add `sum(y * dy)`, whose gradients are those of a loss that has the gradient `dy` at `y`."""
    made = _Graph(
        "pair", {**{name: graph.types[name] for name in graph.inputs}, "dy": graph.types["y"]}, list(graph.nodes)
    )
    made.constants = dict(graph.constants)
    rank = len(graph.types["y"].shape)
    made.op("loss", "reduce_sum", made.op("product", "mul", "y", "dy"), axes=tuple(range(rank)), keepdims=False)
    return made.finish(("loss",), spec)


def _block(model: Transformer, micro: int, spec: Spec) -> Graph:
    tokens = (micro, model.sequence, model.hidden)
    made = _Graph("block", {"x": f32(*tokens)} | {name: f32(*shape) for name, shape in parameter_shapes(model).items()})

    def dense(x: str, name: str) -> str:
        product = made.op(f"{name}.product", "matmul", x, name)
        return made.op(f"{name}.shifted", "add", product, f"{name}.bias") if model.biases else product

    def norm(x: str, name: str) -> str:
        if model.gated:
            return made.op(f"{name}.normed", "rms_norm", x, name, axis=-1)
        return made.op(f"{name}.normed", "layer_norm", x, name, f"{name}.bias", axis=-1)

    def heads(x: str, name: str, count: int) -> str:
        split = made.op(
            f"{name}.split",
            "reshape",
            dense(x, name),
            shape=(micro, model.sequence, count, model.hidden // model.heads),
        )
        return made.op(f"{name}.heads", "transpose", split, perm=(0, 2, 1, 3))

    x = norm("x", "norm1")
    q, k, v = heads(x, "query", model.heads), heads(x, "key", model.groups), heads(x, "value", model.groups)
    if model.gated:
        made.constants |= dict(zip(("cosine", "sine"), _angles(model), strict=True))
        q, k = (made.op(f"{name}.turned", "rotary", name, "cosine", "sine") for name in (q, k))
    mixed = made.op("attention", "attention", q, k, v, causal=True)
    joined = made.op("joined", "reshape", made.op("merged", "transpose", mixed, perm=(0, 2, 1, 3)), shape=tokens)
    middle = made.op("middle", "add", "x", dense(joined, "output"))
    inner = norm(middle, "norm2")
    if model.gated:
        wide = made.op("wide", "mul", made.op("gated", "swish", dense(inner, "gate")), dense(inner, "up"))
    else:
        wide = made.op("wide", "gelu", dense(inner, "up"))
    made.op("y", "add", middle, dense(wide, "down"))
    return made.finish(("y",), spec)


def _angles(model: Transformer) -> tuple[Array, Array]:
    """Return cosines and sines of positions, [1, 1, sequence, half of a head] (Su et al., RoFormer, 2021)."""
    half = model.hidden // model.heads // 2
    turns = np.arange(model.sequence)[:, None] * 10000.0 ** (-np.arange(half) / half)
    return np.cos(turns).astype(np.float32)[None, None], np.sin(turns).astype(np.float32)[None, None]


def loss_graph(model: Transformer, micro: int, elements: int) -> tuple[Graph, Spec]:
    """Return the mean squared difference of `y` and `target`: `loss` is this micro-batch's part of the mean over
    `elements`, `dy` its gradient.
    """
    spec = load_spec(())
    shape = f32(micro, model.sequence, model.hidden)
    made = _Graph("loss", {"y": shape, "target": shape})
    made.constants = {"two": np.asarray(2 / elements, np.float32), "half": np.asarray(0.5, np.float32)}
    difference = made.op("difference", "sub", "y", "target")
    made.op("dy", "mul", difference, "two")
    made.op("product", "mul", difference, "dy")
    made.op("loss", "mul", made.op("sum", "reduce_sum", "product", axes=(0, 1, 2), keepdims=False), "half")
    return verify_graph(made.finish(("loss", "dy"), spec), spec.instances.infer), spec


def adam_graph(elements: int) -> tuple[Graph, Spec]:
    """Return a step of Adam for a run of parameters: `w`, `g`, `mean`, `square`, `rate`, `step` -> `w.next`,
    `mean.next`, `square.next`.
    """
    spec = load_spec(())
    scalars, flat = ("rate", "step"), f32(elements)
    inputs = dict.fromkeys(("w", "g", "mean", "square"), flat) | dict.fromkeys(scalars, f32())
    made = _Graph("adam", inputs)
    outputs = ("w.next", "mean.next", "square.next")
    made.nodes.append(Node("adam", "adam", ("w", "g", "rate", "mean", "square", "step"), outputs))
    return verify_graph(made.finish(outputs, spec), spec.instances.infer), spec
