"""Graphs of a training step besides layers: loss, sums, Adam step.

In mixed precision the loss is computed in fp32 from rounded values, and Adam keeps the parameters in fp32 and outputs
them rounded.
"""

from __future__ import annotations

import numpy as np

from ...compile import Spec, load_spec
from ...ir import DType, Graph, Node, TensorType, verify_graph
from ..plans import Transformer
from .drafts import GraphDraft, f32


def loss_graph(model: Transformer, micro: int, elements: int) -> tuple[Graph, Spec]:
    """Return the mean squared difference of `y` and `target`.

    `loss` is this micro-batch's part of the mean over `elements`, `dy` its gradient.
    """
    spec, dtype = load_spec(()), model.dtype
    shape = TensorType(dtype, (micro, model.sequence, model.hidden))
    draft = GraphDraft("loss", {"y": shape, "target": shape})
    draft.constants = {"two": np.asarray(2 / elements, np.float32), "half": np.asarray(0.5, np.float32)}
    y, target, rounded = "y", "target", dtype != DType.F32
    if rounded:
        y, target = (draft.op(f"{name}.wide", "cast", name, to="f32") for name in (y, target))
    draft.op("difference", "sub", y, target)
    slope = draft.op("slope" if rounded else "dy", "mul", "difference", "two")
    if rounded:
        draft.op("dy", "cast", slope, to=dtype.value)
    draft.op("product", "mul", "difference", slope)
    draft.op("loss", "mul", draft.op("sum", "reduce_sum", "product", axes=(0, 1, 2), keepdims=False), "half")
    return verify_graph(draft.finish(("loss", "dy"), spec), spec.instances.infer), spec


def adam_graph(elements: int, dtype: DType = DType.F32) -> tuple[Graph, Spec]:
    """Return a step of Adam for a run of parameters.

    `w`, `g`, `mean`, `square`, `rate`, `step` -> `w.next`, `mean.next`, `square.next`; where gradients
    and parameters are rounded to `dtype`, the rounded `value.next`, too.
    """
    spec, rounded = load_spec(()), dtype != DType.F32
    scalars, flat = ("rate", "step"), f32(elements)
    inputs = dict.fromkeys(("w", "g", "mean", "square"), flat) | dict.fromkeys(scalars, f32())
    if rounded:
        inputs["g"] = TensorType(dtype, (elements,))
    draft = GraphDraft("adam", inputs)
    gradient = draft.op("g.wide", "cast", "g", to="f32") if rounded else "g"
    outputs: tuple[str, ...] = ("w.next", "mean.next", "square.next")
    draft.nodes.append(Node("adam", "adam", ("w", gradient, "rate", "mean", "square", "step"), outputs))
    if rounded:
        outputs = (*outputs, draft.op("value.next", "cast", "w.next", to=dtype.value))
    return verify_graph(draft.finish(outputs, spec), spec.instances.infer), spec


def sum_graph(elements: int, dtype: DType) -> tuple[Graph, Spec]:
    """Return the sum of two runs of gradients: `a`, `b` -> `y`."""
    spec, flat = load_spec(()), TensorType(dtype, (elements,))
    draft = GraphDraft("sum", {"a": flat, "b": flat})
    draft.op("y", "add", "a", "b")
    return verify_graph(draft.finish(("y",), spec), spec.instances.infer), spec
