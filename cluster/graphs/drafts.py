"""Manual construction of graphs; types are inferred at the end."""

from __future__ import annotations

from attrs import define, field

from ...compile import Spec
from ...ir import Array, Attribute, DType, Graph, Node, TensorType, dtype_of_numpy


@define
class GraphDraft:
    """Graph under construction; types are inferred when it is finished."""

    name: str
    inputs: dict[str, TensorType]
    nodes: list[Node] = field(factory=list)
    constants: dict[str, Array] = field(factory=dict)

    def op(self, name: str, op: str, *inputs: str | None, **attributes: Attribute) -> str:
        """Add a node whose one output has its name, and return that."""
        self.nodes.append(Node(name, op, inputs, (name,), attributes))
        return name

    def finish(self, outputs: tuple[str, ...], spec: Spec) -> Graph:
        """Infer all types and return the graph."""
        types = dict(self.inputs) | {name: _type(array) for name, array in self.constants.items()}
        for node in self.nodes:
            operands = [None if v is None else types[v] for v in node.inputs]
            types |= dict(zip(node.outputs, spec.instances.infer(node, operands), strict=True))
        return Graph(self.name, tuple(self.inputs), outputs, types, tuple(self.nodes), self.constants)


def _type(array: Array) -> TensorType:
    dtype = dtype_of_numpy(array.dtype)
    assert dtype is not None
    return TensorType(dtype, tuple(array.shape))


def f32(*shape: int) -> TensorType:
    """Return a type of fp32 elements."""
    return TensorType(DType.F32, shape)
