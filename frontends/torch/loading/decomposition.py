"""Decomposition of exported programs into core operations, call by call.

PyTorch's `run_decompositions` traces a whole program again, twice, which takes most of the import. An exported program
has the type of every value, so core operations are copied, and each other call is traced alone, once for all calls with
operands of the same types. An in-place operation becomes its functional form, where no later reader shares the memory.
Programs that are not as simple (nested graphs, changed parameters, symbolic shapes, an unsupported operation) are
decomposed by PyTorch as a whole.
"""

from __future__ import annotations

import logging
import operator
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from attrs import define, field, frozen
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from ....ir import GraphError
from ..calls import (
    example_of,
    functional_form,
    is_in_place,
    is_view,
    key_of,
    last_reads,
    map_nodes,
    needed_nodes,
    nodes_in,
    tensor_of,
)
from ..decompositions import REWRITES, CoreCall, is_decomposed, training_decompositions
from ..exported import result_names, separate_buffers

_LOG = logging.getLogger("cuts.frontends")


@frozen
class CoreProgram:
    """Graph of core operations, with signature, tensors and names of results."""

    graph: torch.fx.Graph
    signature: Any
    held: Mapping[str, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, graph: torch.fx.Graph, names: tuple[str, ...]) -> CoreProgram:
        """Return a program with another graph."""
        return cls(graph, program.graph_signature, {**program.state_dict, **program.constants}, names)


def core_program(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> CoreProgram:
    """Return a program in core form, decomposed call by call where possible.

    That needs `is_read` of all operations.

    Raises `GraphError` where PyTorch cannot decompose it.
    """
    with warnings.catch_warnings():  # warnings about PyTorch's internals, which callers cannot change
        warnings.simplefilter("ignore", FutureWarning)
        graph, names = decompose_by_call(program, is_read), result_names(program)
        if graph is None:
            program = _decompose_whole(separate_buffers(program))
        return CoreProgram.of(program, graph or program.graph, names)


def _decompose_whole(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that PyTorch decomposes as a whole."""
    try:
        decomposed: torch.export.ExportedProgram = program.run_decompositions(training_decompositions())
        return decomposed
    except Exception as error:  # of any kind: tracing runs the operations
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise GraphError(f"PyTorch cannot decompose the program: {first}") from error


def decompose_by_call(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> torch.fx.Graph | None:
    """Return a program's graph, decomposed call by call, else None.

    Involved programs are not decomposed here.
    """
    if getattr(program.graph_signature, "backward_signature", None) is not None:
        return None
    try:
        graph = _Decomposition(program.graph, is_read).decompose()
        graph.lint()
    except _InvolvedError:
        return None
    except Exception as error:  # internals of another version
        _LOG.info("cuts: a program is decomposed as a whole: %s: %s", type(error).__name__, error)
        return None
    return graph


class _InvolvedError(Exception):
    """Raised where a program cannot be decomposed call by call."""


@define
class _Decomposition:
    """Copy of a program's graph in core operations.

    `known` has the value of each of its nodes: a node, a number, or several. `memory` has, for each new node, one that
    stands for its memory, the same for views of it.
    """

    source: torch.fx.Graph
    is_read: Callable[[str], bool]
    table: Mapping[Any, Any] = field(factory=training_decompositions)
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    known: dict[torch.fx.Node, Any] = field(factory=dict)
    memory: dict[torch.fx.Node, torch.fx.Node] = field(factory=dict)
    traces: dict[Hashable, torch.fx.Graph] = field(factory=dict)
    mode: FakeTensorMode | None = None

    def decompose(self) -> torch.fx.Graph:
        """Return the graph in core form."""
        last, needed = last_reads(self.source), needed_nodes(self.source)
        for place, node in enumerate(self.source.nodes):
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "output":
                self.graph.output(map_nodes(node.args[0], self.known))
            elif node in needed:
                leaves = [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, torch.Tensor)]
                if any(isinstance(extent, torch.SymInt) for leaf in leaves for extent in leaf.shape):
                    raise _InvolvedError  # traced anew, a computed size would have another symbol
                self.known[node] = self._convert(node, place, last)
        return self.graph

    def _place(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and tensor_of(node) is None:
            raise _InvolvedError
        self.mode = self.mode or getattr(value, "fake_mode", None)
        copied = self.graph.placeholder(node.name)
        copied.name = node.name  # a graph renames nodes with the names of Python's functions
        copied.meta["val"] = value
        self.known[node], self.memory[copied] = copied, copied

    def _convert(self, node: torch.fx.Node, place: int, last: Mapping[torch.fx.Node, int]) -> Any:
        """Add the decomposition of a node of the program; return its value."""
        if node.op != "call_function" or "val" not in node.meta:
            raise _InvolvedError
        args, kwargs = map_nodes(node.args, self.known), map_nodes(node.kwargs, self.known)
        if node.target is operator.getitem:
            source, at = args
            return self._item(source, at, node.meta["val"]) if isinstance(source, torch.fx.Node) else source[at]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _InvolvedError
        if not is_in_place(node):
            return self._call(node.target, args, kwargs, node.meta["val"])
        target = functional_form(node.target, (args, kwargs))
        if target is None or not isinstance(args[0], torch.fx.Node) or self.memory[args[0]].op == "placeholder":
            raise _InvolvedError
        made = self._call(target, args, kwargs, node.meta["val"])
        self._overwrite(self.known, args[0], made, place, last)
        return made

    def _overwrite(
        self, known: dict[torch.fx.Node, Any], old: torch.fx.Node, new: Any, place: int, last: Mapping[Any, int]
    ) -> None:
        """Replace a value for readers after the node at `place`.

        No other value in its memory may be read. `known` has the values of nodes, `last` the positions of their last
        readers.
        """
        memory = self.memory[old]
        for node, value in known.items():
            if value is old:
                known[node] = new
            elif last.get(node, -1) > place and any(self.memory[part] is memory for part in nodes_in(value)):
                raise _InvolvedError

    # ---- calls

    def _call(self, target: torch._ops.OpOverload, args: Any, kwargs: Any, value: Any) -> Any:
        """Add a call or its decomposition; return its results, which are like `value`."""
        rewrite = None if kwargs else REWRITES.get(target)
        found = None if rewrite is None else rewrite(*args)
        if isinstance(found, CoreCall):
            made = self._add(found.target, found.arguments, {}, (value,) if found.several else value)
            return self._item(made, 0, value) if found.several else made
        if found is not None:
            return found
        if not is_decomposed(target, self.table):
            return self._add(target, args, kwargs, value)
        nodes = list(dict.fromkeys(nodes_in((args, kwargs))))
        return self._inline(self._trace(target, args, kwargs, nodes), nodes)

    def _add(self, target: Any, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        """Add a call of a core operation."""
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not self.is_read(str(target)):
            raise _InvolvedError
        node = self.graph.create_node("call_function", target, args, kwargs, name=target.overloadpacket.__name__)
        node.meta["val"] = value
        first = next(nodes_in(args), None) if is_view(target) else None
        self.memory[node] = node if first is None else self.memory[first]
        return node

    def _item(self, source: torch.fx.Node, at: int, value: Any) -> torch.fx.Node:
        """Add one of several results."""
        node = self.graph.create_node("call_function", operator.getitem, (source, at), {}, name="getitem")
        node.meta["val"] = value
        self.memory[node] = self.memory[source]
        return node

    def _trace(self, target: Any, args: Any, kwargs: Any, nodes: list[torch.fx.Node]) -> torch.fx.Graph:
        """Return the decomposition of a call, as a function of the nodes among its arguments."""
        if any(tensor_of(node) is None for node in nodes):
            raise _InvolvedError
        places = {node: place for place, node in enumerate(nodes)}
        key = (target, key_of(args, places), key_of(kwargs, places))
        if key not in self.traces:
            self.traces[key] = self._trace_new(self.table.get(target, target), args, kwargs, nodes)
        return self.traces[key]

    def _trace_new(
        self, function: Callable[..., Any], args: Any, kwargs: Any, nodes: list[torch.fx.Node]
    ) -> torch.fx.Graph:
        def call(*tensors: Any) -> Any:
            given = dict(zip(nodes, tensors, strict=True))
            return function(*map_nodes(args, given), **map_nodes(kwargs, given))

        with self.mode or FakeTensorMode(), torch.no_grad():
            examples = [example_of(node.meta["val"]) for node in nodes]
            try:
                graph: torch.fx.Graph = make_fx(call, decomposition_table=dict(self.table))(*examples).graph
            except Exception as error:  # any error of tracing: the whole program may decompose, or explain it
                raise _InvolvedError from error
        return graph

    def _inline(self, graph: torch.fx.Graph, operands: list[torch.fx.Node]) -> Any:
        """Add a decomposition; return its results."""
        places = [node for node in graph.nodes if node.op == "placeholder"]
        known: dict[torch.fx.Node, Any] = dict(zip(places, operands, strict=True))
        given = {self.memory[node] for node in operands}
        last, needed = last_reads(graph), needed_nodes(graph)
        for place, node in enumerate(graph.nodes):
            if node.op == "output":
                return map_nodes(node.args[0], known)
            if node not in needed or node in known:
                continue
            if node.op != "call_function":
                raise _InvolvedError
            args, kwargs, value = map_nodes(node.args, known), map_nodes(node.kwargs, known), node.meta.get("val")
            if node.target is operator.getitem:
                source, at = args
                known[node] = self._item(source, at, value)
            elif not is_in_place(node):
                known[node] = self._add(node.target, args, kwargs, value)
            elif not isinstance(args[0], torch.fx.Node) or self.memory[args[0]] in given:
                raise _InvolvedError
            else:
                made = self._add(functional_form(node.target, (args, kwargs)), args, kwargs, value)
                self._overwrite(known, args[0], made, place, last)
                known[node] = made
        raise AssertionError("a traced graph has no output")
