"""Precision policy: stores a graph's f32 values in a half type.

Every value of f32 between nodes becomes one of the half type, with casts where a node needs or yields f32:

    %y: f32[8, 4] = matmul(%x, %w)        %a: f16[8, 6] = cast(%x) {to = "f16"}
    %z: f32[8, 4] = softmax(%y)     ->    %y: f16[8, 4] = matmul(%a, %w.f16)
    output %z                             %b: f32[8, 4] = cast(%y) {to = "f32"}
                                          %z: f32[8, 4] = softmax(%b)

Declarations decide which nodes keep f32. Contractions take and yield the half type. Other sums and products (norms,
softmax, losses), results that outgrow a half type (`exp`, `pow`, ...) and roots, whose operands are variances, are
computed from f32 to f32. The result of a sum or such a function stays f32 until a contraction reads it; a quotient by a
sum is stored in the half type. All else, movements and pointwise operations, is in f32 where an operand is. Kernels
compute in f32 in any case, and round where a value is stored.

Inputs and outputs of the graph keep their types; constants are converted here, and finite numbers stay finite. Operands
for which a declaration does not allow the half type keep their type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from attrs import define, evolve, field, frozen

from ...ir import (
    FUNCTIONS,
    Array,
    Call,
    CutsError,
    DType,
    Graph,
    Node,
    Precision,
    Statement,
    TensorType,
    fresh_name,
    sums_products,
    walk,
)
from ...ops.language import Instance, Instances
from .rewrite import prune


@frozen
class LowerPrecision:
    """Apply a precision policy to a graph's types; strict f32 changes nothing."""

    name: ClassVar[str] = "precision"
    instances: Instances
    policy: Precision

    def run(self, graph: Graph) -> Graph:
        """Return the graph with values of f32 in the policy's type."""
        return graph if self.policy.stored is DType.F32 else _Rewriter(graph, self.instances, self.policy.stored).run()


def needs_f32(statement: Statement) -> bool:
    """Return whether a half type is too narrow for a statement's computation."""
    inside = any(isinstance(n, Call) and FUNCTIONS[n.fn].precise == "inside" for n in walk(statement.body))
    return inside or outgrows(statement)


def outgrows(statement: Statement) -> bool:
    """Return whether results need more digits or range than operands."""
    body = statement.body
    precise = isinstance(body, Call) and FUNCTIONS[body.fn].precise == "result"
    return statement.combine in ("sum", "prod") or precise


def _precise_results(node: Node, instance: Instance) -> set[str]:
    """Return the results of a node computed in f32 that need f32: all, unless only its computation needs it."""
    statements = instance.program.statements
    wide = {s.target for s in statements if outgrows(s)} if any(map(needs_f32, statements)) else {*instance.outputs}
    return {value for formal, value in zip(instance.outputs, node.outputs, strict=False) if formal in wide}


@define
class _Rewriter:
    """Graph and its rewritten form.

    `forms` names each f32 value in the types that it has, `precise` are those that stay f32 outside of contractions.
    """

    graph: Graph
    instances: Instances
    half: DType
    nodes: list[Node] = field(factory=list)
    precise: set[str] = field(factory=set)
    names: set[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    constants: dict[str, Array] = field(init=False)
    forms: dict[tuple[str, DType], str] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.types, self.constants = dict(self.graph.types), dict(self.graph.constants)
        self.names = {node.name for node in self.graph.nodes}
        self.forms = {(v, DType.F32): v for v in (*self.graph.inputs, *self.graph.constants) if self._is_f32(v)}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._node(node)
        return prune(
            evolve(self.graph, nodes=tuple(self.nodes), types=self.types, constants=self.constants),
        )

    def _is_f32(self, value: str) -> bool:
        return self.graph.types[value].dtype is DType.F32

    def _node(self, node: Node) -> None:
        """Add a node in the half type where that is allowed, else in its own."""
        instance = self.instances.of_node(node, self.graph)
        dtype = self._dtype(node, instance.program.statements)
        inputs = tuple(v if v is None or not self._is_f32(v) else self._form(v, dtype) for v in node.inputs)
        types = self.instances.infer(node, [None if v is None else self.types[v] for v in inputs])
        outputs = tuple(self._result(v, t) for v, t in zip(node.outputs, types, strict=False))
        self.nodes.append(evolve(node, inputs=inputs, outputs=outputs))
        for value, made in zip(node.outputs, outputs, strict=True):
            if value != made:
                self._cast(made, value, self.graph.types[value])
                self.forms[value, DType.F32] = value
        if dtype is DType.F32:
            self.precise |= _precise_results(node, instance)

    def _dtype(self, node: Node, statements: Sequence[Statement]) -> DType:
        """Return the type that a node's operands of f32 are given in."""
        if not self._allows_half(node):
            return DType.F32
        if any(map(sums_products, statements)):
            return self.half
        return DType.F32 if any(map(needs_f32, statements)) or self.precise & set(node.operands) else self.half

    def _allows_half(self, node: Node) -> bool:
        """Return whether a node's declaration accepts operands of the half type, with half or unchanged results."""
        operands = [None if v is None else self._half_type(v) for v in node.inputs]
        try:
            types = self.instances.infer(node, operands)
        except CutsError:
            return False
        before = [self.graph.types[v] for v in node.outputs]
        return all(
            new == old or (old.dtype is DType.F32 and new == evolve(old, dtype=self.half))
            for new, old in zip(types, before, strict=False)
        )

    def _half_type(self, value: str) -> TensorType:
        type_ = self.graph.types[value]
        return evolve(type_, dtype=self.half) if type_.dtype is DType.F32 else type_

    def _result(self, value: str, type_: TensorType) -> str:
        """Return the name of a node's result: its own, unless it is an output of the graph that has become narrower."""
        if type_ == self.graph.types[value]:
            self.forms[value, type_.dtype] = value
            return value
        name = self._fresh(value) if value in self.graph.outputs else value
        self.types[name] = type_
        self.forms[value, self.half] = name
        return name

    def _form(self, value: str, dtype: DType) -> str:
        """Return the name of a value in one type; it is converted where it has another one."""
        if (value, dtype) not in self.forms:
            type_ = evolve(self.graph.types[value], dtype=dtype)
            name = self._fresh(value, dtype)
            if value in self.graph.constants:
                self.constants[name], self.types[name] = convert_array(self.graph.constants[value], dtype), type_
            else:
                other = DType.F32 if dtype is self.half else self.half
                self._cast(self.forms[value, other], name, type_)
            self.forms[value, dtype] = name
        return self.forms[value, dtype]

    def _cast(self, source: str, name: str, type_: TensorType) -> None:
        self.types[name] = type_
        op, attribute = self.instances.conversion
        called = fresh_name(self.names, f"{name}.cast")
        self.names.add(called)
        self.nodes.append(Node(called, op, (source,), (name,), {attribute: type_.dtype.value}))

    def _fresh(self, value: str, dtype: DType | None = None) -> str:
        return fresh_name(self.types, f"{value}.{dtype or self.half}")


def convert_array(array: Array, dtype: DType) -> Array:
    """Return numbers rounded to a half type; finite ones stay finite.

    A mask of the lowest number is an example.
    """
    limit = np.float32(dtype.element.largest)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(array), np.clip(array, -limit, limit), array).astype(dtype.numpy)
