"""Inlining of the functions that a model defines itself.

    y = l.f<k = 0.3>(x)  with  f <k = 0.5> (a) => (b) { b = LeakyRelu<alpha = @k>(a) }
    ->  y = LeakyRelu<alpha = 0.3>(x)

An attribute that a call leaves out has the function's default; without one, operations that refer to it have theirs. A
node of a function that imports another version of the standard's operator set than the model carries that version.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter

import onnx
from attrs import field, frozen

from ....ir import GraphError, fresh_name, quote
from .functions import inline_body
from .node_opset import is_version, opset_of, set_opset, standard_version

#: Limit of nodes after inlining; a few functions that call each other twice make any number.
MAX_NODES = 1_000_000
#: Limit of nested calls.
MAX_CALL_DEPTH = 100

Key = tuple[str, str, str]


def inline_functions(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Return the model with its own functions inlined.

    Raises `GraphError` where a function calls itself, functions grow large, a call has more operands than its function,
    or leaves out an attribute that an operation requires.
    """
    if not model.functions:
        return model
    bodies = {_key(f.domain, f.name, f.overload): f for f in model.functions}
    calls = {key: [c for c in _calls(body.node) if c in bodies] for key, body in bodies.items()}
    try:
        order = list(TopologicalSorter(calls).static_order())
    except CycleError as error:
        cycle = " -> ".join(quote(key[1]) for key in error.args[1])
        raise GraphError(
            f"{name}: a function of the model calls itself: {cycle}", hint="write what is repeated as a Loop or a Scan"
        ) from None
    _check_sizes(model, name, bodies, order)
    usual = standard_version(model.opset_import)
    inliner = _Inliner(name, bodies, usual, set(_names([model.graph])))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.functions[:], copy.graph.node[:]
    copy.graph.node.extend(inliner.expand(model.graph.node, usual))
    known = {o.domain for o in copy.opset_import}
    for body in model.functions:
        copy.opset_import.extend(o for o in body.opset_import if _domain(o.domain) and o.domain not in known)
        known |= {o.domain for o in body.opset_import}
    return copy


def _check_sizes(
    model: onnx.ModelProto, name: str, bodies: Mapping[Key, onnx.FunctionProto], order: Iterable[Key]
) -> None:
    sizes: dict[Key, int] = {}
    depths: dict[Key, int] = {}
    for key in order:
        depths[key] = 1 + max((depths.get(call, 0) for call in _calls(bodies[key].node)), default=0)
        sizes[key] = _size(bodies[key].node, sizes)
    total = _size(model.graph.node, sizes)
    if total > MAX_NODES:
        raise GraphError(f"{name}: its functions stand for {total:,} nodes, expected at most {MAX_NODES:,}")
    if (deepest := max(depths.values())) > MAX_CALL_DEPTH:
        raise GraphError(f"{name}: expected at most {MAX_CALL_DEPTH} functions one within another, found {deepest}")


@frozen
class _Inliner:
    """Functions of a model, its standard operator set version, and names in use."""

    model: str
    bodies: Mapping[Key, onnx.FunctionProto]
    opset: int
    used_names: set[str] = field()

    def expand(self, nodes: Iterable[onnx.NodeProto], opset: int) -> Iterator[onnx.NodeProto]:
        """Yield nodes of an operator set with calls replaced by bodies."""
        for node in nodes:
            version = opset_of(node, opset)
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            for graph in _graphs(copy):
                inner = list(self.expand(graph.node, version))
                for each in inner:  # a function may get this graph as an attribute
                    set_opset(each, version)
                del graph.node[:]
                graph.node.extend(inner)
            body = self.bodies.get(_key(node.domain, node.op_type, node.overload))
            if body is not None:
                yield from self.expand(self._instance(copy, body), self._version(body))
                continue
            if version != self.opset:
                set_opset(copy, version)
            yield copy

    def _instance(self, node: onnx.NodeProto, body: onnx.FunctionProto) -> list[onnx.NodeProto]:
        """Return the nodes of a body for one call."""
        where = f"{self.model}: node {quote(node.name or next(iter(node.output), ''))} (function {quote(body.name)})"
        for found, formal, kind in ((node.input, body.input, "operands"), (node.output, body.output, "results")):
            if any(list(found)[len(formal) :]):
                raise GraphError(f"{where}: expected at most {len(formal)} {kind}, found {len(found)}")
        given = {a.name for a in node.attribute} | {a.name for a in body.attribute_proto}
        self._check_required(body.node, given, self._version(body), where)
        return inline_body(node, _without_shared_names(body), self._fresh_name)

    def _check_required(self, nodes: Iterable[onnx.NodeProto], given: set[str], opset: int, where: str) -> None:
        """Raise `GraphError` where an operation requires an attribute that refers to one that is not given."""
        for node in nodes:
            absent = [a for a in node.attribute if a.ref_attr_name and a.ref_attr_name not in given]
            for attribute in absent if _key(node.domain, node.op_type, node.overload) not in self.bodies else ():
                if _is_required(node, attribute.name, opset):
                    raise GraphError(
                        f"{where}: attribute {quote(attribute.ref_attr_name)} has no value: "
                        f"{node.op_type} requires it as {quote(attribute.name)}",
                        hint="give it in the call, or a default in the function",
                    )
            for graph in _graphs(node):
                self._check_required(graph.node, given, opset, where)

    def _version(self, body: onnx.FunctionProto) -> int:
        """Return the version of the standard's operator set by which a function is read."""
        version = standard_version(body.opset_import, self.opset)
        if not is_version(version):
            newest = onnx.defs.onnx_opset_version()
            raise GraphError(
                f"{self.model}: function {quote(body.name)}: expected an operator set from 1 to {newest}, found "
                f"{version}",
                hint="convert the model",
            )
        return version

    def _fresh_name(self, hint: str) -> str:
        name = fresh_name(self.used_names, hint)
        self.used_names.add(name)
        return name


def _is_required(node: onnx.NodeProto, attribute: str, opset: int) -> bool:
    """Return whether an operation requires an attribute.

    A Constant requires its only one.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, _domain(node.domain))
    except onnx.defs.SchemaError:
        return False
    declared = schema.attributes.get(attribute)
    only = node.op_type == "Constant" and len(node.attribute) == 1
    return only or (declared is not None and declared.required)


def _without_shared_names(body: onnx.FunctionProto) -> onnx.FunctionProto:
    """Return a body whose results are distinct and no operands; copies define those that are not."""
    taken = {*body.input, *body.output, *(name for node in body.node for name in node.output)}
    seen = set(body.input)
    copy = onnx.FunctionProto()
    copy.CopyFrom(body)
    for place, name in enumerate(body.output):
        if name in seen:
            copy.output[place] = fresh_name(taken, f"{name}.copy")
            taken.add(copy.output[place])
            copy.node.append(onnx.helper.make_node("Identity", [name], [copy.output[place]]))
        seen.add(name)
    return copy


def _graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs among the attributes of a node."""
    return [g for a in node.attribute for g in (*([a.g] if a.HasField("g") else []), *a.graphs)]


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _key(domain: str, name: str, overload: str) -> Key:
    return (_domain(domain), name, overload)


def _names(graphs: Iterable[onnx.GraphProto]) -> Iterator[str]:
    """Yield the names of all values of graphs and their subgraphs."""
    for graph in graphs:
        yield from (value.name for value in (*graph.input, *graph.output, *graph.initializer))
        yield from (tensor.values.name for tensor in graph.sparse_initializer)
        for node in graph.node:
            yield from (*node.input, *node.output)
            yield from _names(_graphs(node))


def _calls(nodes: Iterable[onnx.NodeProto]) -> Iterator[Key]:
    """Yield the callee key of each node, those of subgraphs too."""
    for node in nodes:
        yield _key(node.domain, node.op_type, node.overload)
        for graph in _graphs(node):
            yield from _calls(graph.node)


def _size(nodes: Iterable[onnx.NodeProto], sizes: Mapping[Key, int]) -> int:
    return sum(sizes.get(key, 1) for key in _calls(nodes))
