"""Graphs of the embedding and of the head with the loss.

The embedding takes tokens, [micro, sequence] of i32. The head's forward pass gives the scores of the token after each
sequence; in training its backward pass computes the scores of all tokens once, for the loss and for the gradients:

    loss = sum over tokens of -log softmax(norm(x) table^T)[target] / (batch * sequence)
"""

from __future__ import annotations

import numpy as np
from attrs import evolve

from ...compile import Spec, load_spec
from ...ir import DType, Graph, TensorType, live_graph, verify_graph
from ...ops.gradient import Gradients
from ...passes.graph import differentiate_graph
from ..plans import Transformer
from .blocks import add_norm, add_to_sums, only_read_inputs
from .drafts import GraphDraft
from .parameters import parameter_shapes


def embedding_graphs(model: Transformer, micro: int, *, training: bool) -> list[tuple[Graph, Spec]]:
    """Return the graphs of the embedding, forward and in training backward.

    They are `x` -> `y`, and `x`, `dy` -> `w.next` for each parameter `w`.
    """
    spec, made = load_spec(()), _draft(model, micro, "embedding", {"x": _tokens(model, micro)})
    y = made.op("rows", "gather", "table", "x", axis=0)
    if "places" in made.inputs:
        y = made.op("placed", "add", y, "places")
    made.op("y", "identity", add_norm(made, model, y, "norm") if "norm" in made.inputs else y)
    forward = made.finish(("y",), spec)
    graphs = [(verify_graph(forward, spec.instances.infer), spec)]
    if training:
        made.inputs["dy"] = forward.types["y"]
        graphs.append(_backward(made.finish(("y",), spec), spec, "y", "dy"))
    return graphs


def head_graph(model: Transformer, micro: int, *, training: bool) -> tuple[Graph, Spec]:
    """Return the graph of the head.

    It is `x` -> `y`, or in training `x`, `target` -> `loss`, `dx` and `w.next` for each parameter `w`.
    """
    spec, tokens = load_spec(()), (micro, model.sequence, model.hidden)
    inputs = {"x": TensorType(model.dtype, tokens)} | ({"target": _tokens(model, micro)} if training else {})
    made, x, rows = _draft(model, micro, "head", inputs), "x", micro * model.sequence
    if not training:
        x, rows = made.op("last", "slice", x, starts=(model.sequence - 1,), ends=(model.sequence,), axes=(1,)), micro
    x = made.op("flat", "reshape", x, shape=(rows, model.hidden))
    x = add_norm(made, model, x, "norm") if "norm" in made.inputs else x
    scores = made.op("scores", "matmul", x, made.op("columns", "transpose", "table", perm=(1, 0)))
    scores = scores if model.dtype == DType.F32 else made.op("wide", "cast", scores, to="f32")
    if not training:
        made.op("y", "identity", scores)
        return verify_graph(made.finish(("y",), spec), spec.instances.infer), spec
    made.constants["share"] = np.asarray(1 / (model.batch * model.sequence), np.float32)
    targets = made.op("targets", "reshape", "target", shape=(rows,))
    made.op("loss", "mul", made.op("sum", "cross_entropy", scores, targets, reduction="sum"), "share")
    return _backward(made.finish(("loss",), spec), spec, "loss", None)


def _draft(model: Transformer, micro: int, kind: str, inputs: dict[str, TensorType]) -> GraphDraft:
    shapes = parameter_shapes(model, kind=kind)
    return GraphDraft(kind, inputs | {name: TensorType(model.dtype, shape) for name, shape in shapes.items()})


def _tokens(model: Transformer, micro: int) -> TensorType:
    return TensorType(DType.I32, (micro, model.sequence))


def _backward(graph: Graph, spec: Spec, end: str, given: str | None) -> tuple[Graph, Spec]:
    """Return the graph of the gradients of `end`: added to the sums of parameters, and `dx` where `x` has one."""
    inputs = tuple(name for name in graph.inputs if name not in ("x", "target", "dy"))
    wanted = (*inputs, *(("x",) if given is None else ()))
    gradients = Gradients(spec.registry)
    found = differentiate_graph(graph, gradients, end, wanted, given=given)
    spec = Spec(gradients.registry, {**spec.texts, **gradients.texts})
    whole = found.graph
    types, nodes, outputs = dict(whole.types), list(whole.nodes), [] if given else [end]
    if given is None:
        made = GraphDraft("dx", {})
        made.op("dx", "identity", found.gradients["x"])
        nodes += made.nodes
        types["dx"] = types["x"]
        outputs.append("dx")
    outputs += add_to_sums(inputs, found.gradients, types, nodes)
    backward = evolve(
        whole,
        name=f"{graph.name}-backward",
        inputs=(*graph.inputs, *(f"{name}.sum" for name in inputs)),
        outputs=tuple(outputs),
        types=types,
        nodes=tuple(nodes),
    )
    return verify_graph(only_read_inputs(live_graph(backward)), spec.instances.infer), spec
