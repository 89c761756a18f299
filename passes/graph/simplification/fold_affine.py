"""Folds channel scales and shifts into constant parameters of the producer.

    %c: f32[1, 8, 4, 4] = conv(%x, %w)
    %y: f32[1, 8, 4, 4] = batch_norm(%c, %s, %b, %m, %v)
        ->     %y: f32[1, 8, 4, 4] = conv(%x, %w.folded, %c.shift)

Both halves are read off the programs. The consumer is one pointwise statement `a[c] * x + b[c]` whose other operands
are constants; the producer's result is linear in constant operands that the same axis indexes (a filter and a bias), so
scaling these scales the result. The shift goes into an operand that is added to the result: one that is there, or an
optional one that the declaration offers. Batch norm after convolution is the case it is known for; a multiplication
after a matrix product or a layer norm is another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from ....ir import (
    Array,
    Const,
    CutsError,
    DType,
    Expr,
    Graph,
    Node,
    Program,
    Statement,
    TensorType,
    as_index,
    expr_variables,
    fresh_name,
)
from ....ops import Instance, evaluate
from ....ops.language import Instances
from ..rewrite import prune
from .linearity import additive_slots, affine_parts, linear_dims

Values = npt.NDArray[Any]
_ONE, _ZERO = Const(1.0, DType.F64), Const(0.0, DType.F64)


@frozen
class _Affine:
    """`scale * x + shift` along dim `dim` of x, or a uniform one where `dim` is None."""

    dim: int | None
    scale: Values
    shift: Values


@frozen
class _Target:
    """Way to absorb the affine map: the node's operands and program, the dim of each parameter, and the operand of the
    shift.
    """

    inputs: tuple[str | None, ...]
    instance: Instance
    dims: Mapping[str, int | None]
    slot: tuple[str, int, float] | None


@frozen
class FoldAffine:
    """Fold affine consumers (batch norm) into producers (convolution) without other readers."""

    name: ClassVar[str] = "fold-affine"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the graph with scales and shifts folded."""
        graph = prune(graph)  # a dead reader would hide that a value has one reader
        before = None
        while graph != before:
            before, graph = graph, self._sweep(graph)
        return prune(graph)

    def _sweep(self, graph: Graph) -> Graph:
        position, consumers = 0, graph.consumers()
        while position < len(graph.nodes):
            folded = self._fold(graph, graph.nodes[position], consumers)
            if folded is None:
                position += 1
            else:
                graph, consumers = folded, folded.consumers()
        return graph

    def _fold(self, graph: Graph, producer: Node, consumers: Mapping[str, Sequence[Node]]) -> Graph | None:
        """Fold the only reader of a node into it, or return None."""
        if (
            len(producer.outputs) != 1
            or producer.outputs[0] in graph.outputs
            or not any(v in graph.constants for v in producer.operands)
        ):
            return None
        value = producer.outputs[0]
        readers = consumers[value]
        if len(readers) != 1 or readers[0].inputs.count(value) != 1 or not graph.types[value].dtype.is_float:
            return None
        affine = self._affine(graph, readers[0], value)
        if affine is None:
            return None
        for target in self._targets(graph, producer, affine):
            constants = _fold_constants(graph, target, affine)
            if constants is not None:
                return _rebuild(graph, producer, readers[0], target, constants)
        return None

    def _affine(self, graph: Graph, node: Node, value: str) -> _Affine | None:
        """Return the scale and shift along one dim that a node applies to an operand, else None."""
        if len(node.outputs) != 1 or graph.types[node.outputs[0]] != graph.types[value]:
            return None
        if any(v != value and v not in graph.constants for v in node.operands):
            return None
        instance = self.instances.of_node(node, graph)
        formal = instance.inputs[node.inputs.index(value)]
        statements = instance.program.statements
        if len(statements) != 1 or not statements[0].is_pointwise or formal is None:
            return None
        if any(r.tensor == formal and (r.indices != statements[0].write or r.guards) for r in statements[0].reads):
            return None
        parts = affine_parts(statements[0].body, formal, _ONE, _ZERO)
        return (
            None
            if parts is None
            else _evaluate_affine(statements[0], instance, parts, _operands(instance, node, graph.constants))
        )

    def _targets(self, graph: Graph, node: Node, affine: _Affine) -> Iterator[_Target]:
        """Yield the ways in which a node can absorb an affine map, fewest changes first."""
        if not np.any(affine.shift):
            instance = self.instances.of_node(node, graph)
            for dims in _linear_choices(instance, node.inputs, graph, affine.dim):
                yield _Target(node.inputs, instance, dims, None)
            return
        for inputs, instance in self._with_slots(graph, node, affine):
            for slot in additive_slots(instance.program):
                if affine.dim not in (None, slot[1]):
                    continue
                for dims in _linear_choices(instance, inputs, graph, affine.dim):
                    if slot[0] in dims:
                        yield _Target(inputs, instance, dims, slot)

    def _with_slots(
        self, graph: Graph, node: Node, affine: _Affine
    ) -> Iterator[tuple[tuple[str | None, ...], Instance]]:
        """Yield the node as it is, then with each absent optional operand filled
        by a vector along a dim of the result.
        """
        yield node.inputs, self.instances.of_node(node, graph)
        type_ = graph.types[node.outputs[0]]
        extents = type_.shape if affine.dim is None else (type_.shape[affine.dim],)
        for position, operand in enumerate(self.instances.vocabulary.of(node).operands):
            if not operand.optional or (position < len(node.inputs) and node.inputs[position] is not None):
                continue
            inputs = [*node.inputs, *[None] * (position + 1 - len(node.inputs))]
            inputs[position] = _NEW
            for extent in dict.fromkeys(extents):
                types = {**graph.types, _NEW: TensorType(type_.dtype, (extent,))}
                try:
                    instance = self.instances.of(node, [None if v is None else types[v] for v in inputs])
                except CutsError:
                    continue
                if instance.output_types == (type_,):
                    yield tuple(inputs), instance


#: Stands for the operand that is to be made; no value of a verified graph is called so, for names hold no lone
#: surrogates.
_NEW = "\ud800new"


def _operands(instance: Instance, node: Node, constants: Mapping[str, Array]) -> dict[str, Array]:
    named = zip(instance.inputs, node.inputs, strict=False)
    return {f: constants[v] for f, v in named if f is not None and v is not None and v in constants}


def _evaluate_affine(
    statement: Statement, instance: Instance, parts: tuple[Expr, Expr], operands: dict[str, Array]
) -> _Affine | None:
    """Return scale and shift as numbers, if they vary along one axis at most."""
    axes = sorted(expr_variables(parts[0]) | expr_variables(parts[1]), key=lambda v: v.name)
    if len(axes) > 1 or not all(as_index(v) in statement.write for v in axes):
        return None
    write = tuple(as_index(v) for v in axes)
    type_ = TensorType(DType.F64, tuple(v.extent for v in axes))
    statements = [
        Statement(name, tuple(axes), write, part) for name, part in zip(("scale ", "shift "), parts, strict=True)
    ]
    # Of the operation's own tensors the constants alone are read; its operand may be millions of elements.
    read = {name: t for name, t in instance.program.tensors.items() if name in {*operands, *instance.program.constants}}
    tensors = {**read, "scale ": type_, "shift ": type_}
    program = Program(tensors, tuple(operands), ("scale ", "shift "), tuple(statements), instance.program.constants)
    values = evaluate(program, operands)
    dim = statement.write.index(write[0]) if axes else None
    return _Affine(dim, values["scale "], values["shift "])


def _linear_choices(
    instance: Instance, inputs: tuple[str | None, ...], graph: Graph, dim: int | None
) -> Iterator[dict[str, int | None]]:
    """Yield sets of constant operands that the result is linear in, largest first, with their dims.

    An operand of fewer digits than the result would lose the digits of a scale.
    """
    digits = min(type_.dtype.element.digits for type_ in instance.output_types)
    known = [
        f
        for f, v in zip(instance.inputs, inputs, strict=False)
        if f is not None
        and (v in graph.constants or v == _NEW)
        and instance.program.tensors[f].dtype.is_float
        and instance.program.tensors[f].dtype.element.digits >= digits
    ]
    for count in range(len(known), 0, -1):
        for names in combinations(known, count):
            dims = linear_dims(instance.program, names, dim)
            if dims is not None:
                yield dims


def _fold_constants(graph: Graph, target: _Target, affine: _Affine) -> dict[str, Array] | None:
    """Return the new array of each parameter, by formal name, or None where one would not be finite."""
    arrays: dict[str, Array] = {}
    for formal, value in zip(target.instance.inputs, target.inputs, strict=False):
        if formal not in target.dims or formal is None or value is None:
            continue
        type_ = target.instance.program.tensors[formal]
        old = np.zeros(type_.shape) if value == _NEW else graph.constants[value]
        dim = target.dims[formal]
        scale = affine.scale if dim is None else affine.scale.reshape([-1 if n == dim else 1 for n in range(old.ndim)])
        with np.errstate(over="ignore"):
            if target.slot is not None and formal == target.slot[0]:
                shift = _shift_of_slot(affine.shift / target.slot[2], target, type_)
                arrays[formal] = (old.astype(np.float64) * scale + shift).astype(type_.dtype.numpy)
            else:  # large weights are read and written once
                arrays[formal] = np.multiply(
                    old, scale, out=np.empty(type_.shape, type_.dtype.numpy), dtype=np.float64, casting="unsafe"
                )
        if not np.all(np.isfinite(arrays[formal])):
            return None
    return arrays


def _shift_of_slot(shift: Values, target: _Target, type_: TensorType) -> Values:
    """Return the shift in the shape of the slot's operand, all of whose axes but one have size 1."""
    size = type_.size
    return np.broadcast_to(shift, (size,)).reshape(type_.shape)


def _rebuild(graph: Graph, producer: Node, reader: Node, target: _Target, arrays: Mapping[str, Array]) -> Graph:
    """Return the graph with the producer defining the reader's result from the new constants."""
    constants, types = dict(graph.constants), dict(graph.types)
    inputs = list(target.inputs)
    for position, formal in enumerate(target.instance.inputs):
        if formal in arrays and formal is not None:
            old = inputs[position]
            made = old is None or old == _NEW
            name = fresh_name(
                types, f"{producer.outputs[0]}.shift" if made else f"{str(old).partition('.folded')[0]}.folded"
            )
            constants[name] = arrays[formal]
            types[name] = target.instance.program.tensors[formal]
            inputs[position] = name
    del types[producer.outputs[0]]
    merged = evolve(producer, inputs=tuple(inputs), outputs=reader.outputs)
    nodes = tuple(merged if node is producer else node for node in graph.nodes if node is not reader)
    return evolve(graph, nodes=nodes, constants=constants, types=types)
