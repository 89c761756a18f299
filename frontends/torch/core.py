"""Exported programs in core operations: each call is taken apart by itself, where it has to be.

`run_decompositions` of PyTorch traces a whole program again, twice: for DenseNet-121 that took 2.5 of the 3.5 s of
reading it. An exported program has the type of every value, so what is in core form already is taken over, and what is
not is traced alone, once for all calls with operands of the same types. Writing in place becomes the operation without
it, where nothing else that shares the memory is read later. Whatever is not as simple as that (graphs within graphs,
changed parameters, symbolic shapes, an operation that we cannot read) is PyTorch's to take apart, as a whole.
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

from ...ir import GraphError
from .calls import (
    example_of,
    is_view,
    key_of,
    last_reads,
    mapped,
    needed_nodes,
    nodes_in,
    tensor_of,
    without_writing,
    writes,
)
from .decompositions import REWRITES, Rewritten, is_taken_apart, training_decompositions
from .exported import without_shared_memory

_LOG = logging.getLogger("cuts.frontends")


@frozen
class CoreProgram:
    """A graph of core operations, what its inputs and outputs are, and what the program holds, by target."""

    graph: torch.fx.Graph
    signature: Any
    held: Mapping[str, Any]

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, graph: torch.fx.Graph) -> CoreProgram:
        """Return a program with a graph in the place of its own."""
        return cls(graph, program.graph_signature, {**program.state_dict, **program.constants})


def core_program(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> CoreProgram:
    """Return a program in core form, made call by call where that is possible and `is_read` holds of all operations.

    Raises `GraphError` where PyTorch cannot decompose it.
    """
    with warnings.catch_warnings():  # PyTorch warns of its own insides, which nobody who calls this can change
        warnings.simplefilter("ignore", FutureWarning)
        graph = piecewise(program, is_read)
        if graph is None:
            program = _decomposed(without_shared_memory(program))
        return CoreProgram.of(program, graph or program.graph)


def _decomposed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program that PyTorch decomposes as a whole."""
    try:
        decomposed: torch.export.ExportedProgram = program.run_decompositions(training_decompositions())
        return decomposed
    except Exception as error:  # of any kind: tracing runs the operations
        first = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise GraphError(f"PyTorch cannot decompose the program: {first}") from error


def piecewise(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> torch.fx.Graph | None:
    """Return a program's graph in core form, made call by call; None where it is involved."""
    if getattr(program.graph_signature, "backward_signature", None) is not None:
        return None
    try:
        graph = _Parts(program.graph, is_read).taken_apart()
        graph.lint()
    except _Involved:
        return None
    except Exception as error:  # another version's insides: PyTorch knows its own
        _LOG.info("cuts: a program is taken apart as a whole: %s: %s", type(error).__name__, error)
        return None
    return graph


class _Involved(Exception):
    """A program is not taken apart call by call."""


@define
class _Parts:
    """A program's graph as it is copied, in core operations.

    `known` has what each of its nodes became: a node, a number, or several. `memory` has, for each new node, one that
    stands for the memory in which it lies, the same for views of it.
    """

    source: torch.fx.Graph
    is_read: Callable[[str], bool]
    table: Mapping[Any, Any] = field(factory=training_decompositions)
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    known: dict[torch.fx.Node, Any] = field(factory=dict)
    memory: dict[torch.fx.Node, torch.fx.Node] = field(factory=dict)
    traced: dict[Hashable, torch.fx.Graph] = field(factory=dict)
    mode: FakeTensorMode | None = None

    def taken_apart(self) -> torch.fx.Graph:
        """Return the graph in core form."""
        last, needed = last_reads(self.source), needed_nodes(self.source)
        for place, node in enumerate(self.source.nodes):
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "output":
                self.graph.output(mapped(node.args[0], self.known))
            elif node in needed:
                self.known[node] = self._converted(node, place, last)
        return self.graph

    def _place(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and tensor_of(node) is None:
            raise _Involved
        self.mode = self.mode or getattr(value, "fake_mode", None)
        copied = self.graph.placeholder(node.name)
        copied.name = node.name  # a graph gives new names to what is called as a function of Python
        copied.meta["val"] = value
        self.known[node], self.memory[copied] = copied, copied

    def _converted(self, node: torch.fx.Node, place: int, last: Mapping[torch.fx.Node, int]) -> Any:
        """Add what a node of the program is made of; return what it becomes."""
        if node.op != "call_function" or "val" not in node.meta:
            raise _Involved
        args, kwargs = mapped(node.args, self.known), mapped(node.kwargs, self.known)
        if node.target is operator.getitem:
            source, at = args
            return self._item(source, at, node.meta["val"]) if isinstance(source, torch.fx.Node) else source[at]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _Involved
        if not writes(node):
            return self._call(node.target, args, kwargs, node.meta["val"])
        target = without_writing(node.target, (args, kwargs))
        if target is None or not isinstance(args[0], torch.fx.Node) or self.memory[args[0]].op == "placeholder":
            raise _Involved
        made = self._call(target, args, kwargs, node.meta["val"])
        self._overwrite(self.known, args[0], made, place, last)
        return made

    def _overwrite(
        self, known: dict[torch.fx.Node, Any], old: torch.fx.Node, new: Any, place: int, last: Mapping[Any, int]
    ) -> None:
        """Let what is read later of a value, after the node at `place`, be another; nothing else in its memory may be
        read. `known` has what nodes became, `last` the places of their last readers.
        """
        memory = self.memory[old]
        for node, value in known.items():
            if value is old:
                known[node] = new
            elif last.get(node, -1) > place and any(self.memory[part] is memory for part in nodes_in(value)):
                raise _Involved

    # ---- calls

    def _call(self, target: torch._ops.OpOverload, args: Any, kwargs: Any, value: Any) -> Any:
        """Add a call, or what it is made of; return its results, which are like `value`."""
        rewrite = None if kwargs else REWRITES.get(target)
        found = None if rewrite is None else rewrite(*args)
        if isinstance(found, Rewritten):
            made = self._add(found.target, found.arguments, {}, (value,) if found.several else value)
            return self._item(made, 0, value) if found.several else made
        if found is not None:
            return found
        if not is_taken_apart(target, self.table):
            return self._add(target, args, kwargs, value)
        nodes = list(dict.fromkeys(nodes_in((args, kwargs))))
        return self._inlined(self._trace(target, args, kwargs, nodes), nodes)

    def _add(self, target: Any, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        """Add a call of a core operation."""
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or not self.is_read(str(target)):
            raise _Involved
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
        """Return what a call is made of, as a function of the nodes among its arguments."""
        if any(tensor_of(node) is None for node in nodes):
            raise _Involved
        places = {node: place for place, node in enumerate(nodes)}
        key = (target, key_of(args, places), key_of(kwargs, places))
        if key not in self.traced:
            self.traced[key] = self._traced(self.table.get(target, target), args, kwargs, nodes)
        return self.traced[key]

    def _traced(
        self, function: Callable[..., Any], args: Any, kwargs: Any, nodes: list[torch.fx.Node]
    ) -> torch.fx.Graph:
        def computed(*tensors: Any) -> Any:
            given = dict(zip(nodes, tensors, strict=True))
            return function(*mapped(args, given), **mapped(kwargs, given))

        with self.mode or FakeTensorMode(), torch.no_grad():
            examples = [example_of(node.meta["val"]) for node in nodes]
            try:
                graph: torch.fx.Graph = make_fx(computed, decomposition_table=dict(self.table))(*examples).graph
            except Exception as error:  # whatever tracing meets: as a whole it may not, or says what it met
                raise _Involved from error
        return graph

    def _inlined(self, graph: torch.fx.Graph, operands: list[torch.fx.Node]) -> Any:
        """Add what a call is made of; return its results."""
        places = [node for node in graph.nodes if node.op == "placeholder"]
        known: dict[torch.fx.Node, Any] = dict(zip(places, operands, strict=True))
        given = {self.memory[node] for node in operands}
        last, needed = last_reads(graph), needed_nodes(graph)
        for place, node in enumerate(graph.nodes):
            if node.op == "output":
                return mapped(node.args[0], known)
            if node not in needed or node in known:
                continue
            if node.op != "call_function":
                raise _Involved
            args, kwargs, value = mapped(node.args, known), mapped(node.kwargs, known), node.meta.get("val")
            if node.target is operator.getitem:
                source, at = args
                known[node] = self._item(source, at, value)
            elif not writes(node):
                known[node] = self._add(node.target, args, kwargs, value)
            elif not isinstance(args[0], torch.fx.Node) or self.memory[args[0]] in given:
                raise _Involved
            else:
                made = self._add(without_writing(node.target, (args, kwargs)), args, kwargs, value)
                self._overwrite(known, args[0], made, place, last)
                known[node] = made
        raise AssertionError("a traced graph has no output")
