"""Graph for a range of sizes, from graphs at some sizes.

Tensors have room for the greatest sizes. A node whose operation needs a size becomes one that reads it from a scalar
input, with a declaration of its own; all others stay as they are:

    s = reduce_mean(x[n, 8], axes: [0])   ->   s = reduce_mean_sized_1f2e(x[64, 8], n)
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from attrs import define, evolve, field, frozen

from ...ir import (
    Array,
    Const,
    CutsError,
    DimFactor,
    DType,
    Graph,
    GraphError,
    Node,
    Program,
    SizeSamples,
    Statement,
    SymbolicExtent,
    TensorType,
    Var,
    as_index,
    attributes_key,
    fresh_name,
    live_graph,
    quote,
)
from ..gradient import declare
from ..language import Instances
from .bounded_program import Layouts, bounded_program
from .computed_sizes import common_producers, take_in
from .extrapolation import extrapolated_graph, graph_form
from .least_sizes import Ends, check_range
from .unify import SizeDependence, SizeInput, Unifier


@frozen
class BoundedGraph:
    """Graph whose tensors have room for the greatest sizes.

    `layouts` has the places of the elements of inputs and outputs; `sizes` the scalar input of each dim that the graph
    reads; `fixed` the results of the interface that are sizes; `counts` the output with the size of each computed dim.
    """

    graph: Graph
    layouts: Mapping[str, Layouts]
    sizes: Mapping[str, SizeInput]
    fixed: Mapping[str, SymbolicExtent] = field(factory=dict)
    counts: Mapping[str, str] = field(factory=dict)


def bounded_graph(graphs: Sequence[Graph], samples: SizeSamples, instances: Instances, ends: Ends = ()) -> BoundedGraph:
    """Return the graph for all sizes of a range.

    `graphs` are those at the samples, `ends` those at the range's other ends.

    A model may have another form at its greatest size, where a slice of a table is all of it: the graph for that size
    then follows from the others.

    Raises `GraphError` where the sizes change the graph otherwise than by affine extents, which grow with them.
    """
    forms = [graph_form(graph) for graph in graphs[:2]]
    if len(forms) == 2 and forms[0] != forms[1]:
        graphs = [extrapolated_graph(graphs[1:], samples, instances), *graphs[1:]]
    return _Bounding(graphs, samples, instances, ends).run()


@define
class _Bounding:
    graphs: Sequence[Graph]
    samples: SizeSamples
    instances: Instances
    ends: Ends
    layouts: dict[str, Layouts] = field(factory=dict)
    types: dict[str, TensorType] = field(factory=dict)
    inputs: dict[str, SizeInput] = field(factory=dict)
    used: set[str] = field(factory=set)
    nodes: list[Node] = field(factory=list)
    known: dict[object, tuple[Program, dict[str, Layouts]]] = field(factory=dict)

    def run(self) -> BoundedGraph:
        first = self.graphs[0]
        self.types.update(first.types)
        for dim in self.samples.varying:
            name = fresh_name(self.types, f"{dim.name}.beyond_{dim.low}")
            self.inputs[dim.name] = SizeInput(name, dim.low, dim.high)
            self.types[name] = TensorType(DType.I32, ())
        self._check_form()
        for name in first.inputs:
            self.layouts[name] = self._prefixes(name)
        constants = {name: array for name, array in first.constants.items() if self._constant(name)}
        for number in range(len(first.nodes)):
            try:
                self._node([graph.nodes[number] for graph in self.graphs])
            except SizeDependence as error:
                raise self._error(first.nodes[number], error) from error
        check_range(self.graphs, self.samples, self.layouts, self.ends, self.instances)
        sizes = {dim: source for dim, source in self.inputs.items() if source.tensor in self.used}
        scalars = {dim: source.tensor for dim, source in sizes.items()}
        inputs = (*first.inputs, *scalars.values())
        graph = evolve(first, inputs=inputs, nodes=tuple(self.nodes), types=self.types, constants=constants)
        whole, counts = take_in(live_graph(graph), common_producers(self.graphs), scalars, self.instances.infer)
        layouts = {name: self.layouts[name] for name in (*whole.inputs, *whole.outputs) if name in self.layouts}
        sizes = {dim: source for dim, source in sizes.items() if dim not in counts}
        return BoundedGraph(whole, layouts, sizes, self._size_results(), counts)

    def _size_results(self) -> dict[str, SymbolicExtent]:
        """Return the fixed results that are sizes."""
        found = {}
        for name, result in self.graphs[0].interface.fixed.items():
            values = [graph.interface.fixed[name].value for graph in self.graphs]
            if all(value == result.value for value in values):
                continue
            extent = self.samples.fit(tuple(v for v in values if isinstance(v, int)))
            if extent is None:
                raise GraphError(f"result {quote(name)} is no affine function of the sizes: {values}")
            found[name] = extent
        return found

    def _error(self, node: Node, error: CutsError) -> GraphError:
        dims = ", ".join(map(str, self.samples.varying))
        return GraphError(
            f"node {quote(node.origin or node.name)} ({node.op}) cannot be compiled for {dims}: {error.message}",
            node.span,
            "fix the sizes with --shape (shapes= of cuts.build), or leave one of these dims fixed",
        )

    def _check_form(self) -> None:
        """Raise where the graphs differ in more than shapes, attributes and constants."""
        if any(graph_form(graph) != graph_form(self.graphs[0]) for graph in self.graphs):
            dims = ", ".join(map(str, self.samples.varying))
            raise GraphError(
                f"graph {quote(self.graphs[0].name)} has other nodes at other sizes of {dims}",
                hint="fix the sizes with --shape (shapes= of cuts.build)",
            )

    def _prefixes(self, name: str) -> Layouts:
        shapes = [graph.types[name].shape for graph in self.graphs]
        found = []
        for number, sizes in enumerate(zip(*shapes, strict=True)):
            extent = self.samples.fit(sizes)
            if extent is None:
                raise GraphError(f"value {quote(name)}: dim {number} is no affine function of the sizes: {sizes}")
            found.append((DimFactor(sizes[0], extent),))
        return tuple(found)

    # ---- constants

    def _constant(self, name: str) -> bool:
        """Return whether a constant stays one; one that is a size becomes a node."""
        arrays = [graph.constants[name] for graph in self.graphs]
        first = arrays[0]
        if all(_is_same(a, first) for a in arrays):
            self.layouts[name] = tuple((DimFactor(n, SymbolicExtent(n)),) for n in first.shape)
            return True
        if all(a.ndim == first.ndim and _begins_with(first, a) for a in arrays):
            self.layouts[name] = self._prefixes(name)
            return True
        if all(a.shape == first.shape and a.size == 1 and float(a.item()).is_integer() for a in arrays):
            extent = self.samples.fit(tuple(int(a.item()) for a in arrays))
            if extent is not None:
                self._size_node(name, first, extent)
                return False
        raise GraphError(
            f"constant {quote(name)} has other values at other sizes, which are none of an affine size",
            hint="fix the sizes with --shape (shapes= of cuts.build)",
        )

    def _size_node(self, name: str, array: Array, extent: SymbolicExtent) -> None:
        """Add the node of a constant that is a size."""
        axes = tuple(Var(f"i{n}", size) for n, size in enumerate(array.shape))
        type_ = self.graphs[0].types[name]
        value = Unifier(self.samples, self.inputs).expr(
            [Const(graph.constants[name].item(), type_.dtype) for graph in self.graphs]
        )
        read = tuple(self.inputs[dim].tensor for dim, _ in extent.terms)
        tensors = {**dict.fromkeys(read, TensorType(DType.I32, ())), "y": type_}
        program = Program(tensors, read, ("y",), (Statement("y", axes, tuple(map(as_index, axes)), value),))
        self.layouts[name] = tuple((DimFactor(n, SymbolicExtent(n)),) for n in array.shape)
        self._declare(Node(fresh_name({n.name for n in self.nodes}, f"{name}.size"), "size", (), (name,)), program)

    # ---- nodes

    def _node(self, found: Sequence[Node]) -> None:
        first = found[0]
        pairs = list(zip(found, self.graphs, strict=True))
        operands = tuple(self.layouts[value] for value in first.operands)
        key = (
            first.op,
            first.declaration,
            operands,
            tuple(value is None for value in first.inputs),
            tuple(
                (attributes_key(node.attributes), tuple(graph.types[v] for v in (*node.operands, *node.outputs)))
                for node, graph in pairs
            ),
        )
        if key not in self.known:
            made = [self.instances.of_node(node, graph) for node, graph in pairs]
            if any((i.inputs, i.outputs) != (made[0].inputs, made[0].outputs) for i in made):
                raise SizeDependence("its operands or results differ at other sizes")
            formal = [name for name in made[0].inputs if name is not None]
            self.known[key] = bounded_program(
                [instance.program for instance in made],
                self.samples,
                self.inputs,
                dict(zip(formal, operands, strict=True)),
            )
        program, results = self.known[key]
        self.layouts.update(zip(first.outputs, (results[name] for name in program.outputs), strict=True))
        if len(program.inputs) == len(first.operands) and program is not None:
            original = self.instances.of_node(first, self.graphs[0]).program
            if program == original:
                self.nodes.append(first)
                return
        self._declare(first, program)

    def _declare(self, node: Node, program: Program) -> None:
        """Add a node whose declaration means a program; its last inputs are sizes."""
        count = len(node.operands)
        extra = program.inputs[count:]
        self.used.update(extra)
        text = declare("sized", f"{node.op} of sizes that vary", program)
        name = f"{node.op}_sized_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
        text = declare(name, f"{node.op} of sizes that vary", program)
        self.nodes.append(evolve(node, op=name, inputs=(*node.operands, *extra), attributes={}, declaration=text))


def _is_same(a: Array, b: Array) -> bool:
    memory = a.__array_interface__["data"] == b.__array_interface__["data"] and a.strides == b.strides
    return a.shape == b.shape and (memory or np.array_equal(a, b))


def _begins_with(whole: Array, part: Array) -> bool:
    if any(n > m for n, m in zip(part.shape, whole.shape, strict=True)):
        return _begins_with(part, whole)
    return np.array_equal(whole[tuple(slice(0, n) for n in part.shape)], part)
