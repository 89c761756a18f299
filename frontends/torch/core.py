"""Exported programs in core operations: each call is taken apart by itself, where it has to be.

`run_decompositions` of PyTorch traces a whole program again, twice: for DenseNet-121 that took 2.5 of the 3.5 s of
reading it. An exported program has the type of every value, so what is in core form already is taken over, and what is
not is traced alone, once for all calls with operands of the same types. Writing in place becomes the operation without
it, where nothing else that shares the memory is read later. Whatever is not as simple as that (graphs within graphs,
changed parameters, symbolic shapes, an operation that we cannot read) is PyTorch's to take apart, as a whole.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch
from attrs import define, field, frozen
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from .decompositions import is_taken_apart, training_decompositions

aten = torch.ops.aten


@frozen
class CoreProgram:
    """A graph of core operations, what its inputs and outputs are, and what the program holds, by target."""

    graph: torch.fx.Graph
    signature: Any
    held: Mapping[str, Any]

    @classmethod
    def of(cls, program: torch.export.ExportedProgram, graph: torch.fx.Graph | None = None) -> CoreProgram:
        """Return a program that is in core form; `graph` is its own in that form."""
        held = {**program.state_dict, **program.constants}
        return cls(graph or program.graph, program.graph_signature, held)


def core_program(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> CoreProgram:
    """Return a program in core form, made call by call where that is possible and `is_read` holds of all operations."""
    with warnings.catch_warnings():  # PyTorch warns of its own insides, which nobody who calls this can change
        warnings.simplefilter("ignore", FutureWarning)
        graph = _piecewise(program, is_read)
        if graph is not None:
            return CoreProgram.of(program, graph)
        return CoreProgram.of(program.run_decompositions(training_decompositions()))


class _Involved(Exception):
    """A program is not taken apart call by call."""


def _piecewise(program: torch.export.ExportedProgram, is_read: Callable[[str], bool]) -> torch.fx.Graph | None:
    if getattr(program.graph_signature, "backward_signature", None) is not None:
        return None
    try:
        graph = _Parts(program.graph, is_read).taken_apart()
        graph.lint()
    except _Involved:
        return None
    return graph


@define
class _Parts:
    """A program's graph as it is copied, in core operations.

    `known` has what each of its nodes became: a node, a number, or several. `memory` has a node of each new node's
    memory, the same for views of it.
    """

    source: torch.fx.Graph
    is_read: Callable[[str], bool]
    table: Mapping[Any, Any] = field(factory=training_decompositions)
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    known: dict[torch.fx.Node, Any] = field(factory=dict)
    memory: dict[torch.fx.Node, torch.fx.Node] = field(factory=dict)
    traced: dict[Hashable, torch.fx.GraphModule] = field(factory=dict)
    mode: FakeTensorMode | None = None

    def taken_apart(self) -> torch.fx.Graph:
        """Return the graph in core form."""
        last = _last_reads(self.source)
        needed = _needed(self.source)
        for place, node in enumerate(self.source.nodes):
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "output":
                self.graph.output(torch.fx.map_arg(node.args[0], self.known.__getitem__))
            elif node in needed:
                self.known[node] = self._converted(node, place, last)
        return self.graph

    def _place(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            if _is_symbolic(value):
                raise _Involved
            self.mode = self.mode or getattr(value, "fake_mode", None)
        copied = self.graph.placeholder(node.name)
        copied.meta["val"] = value
        self.known[node], self.memory[copied] = copied, copied

    def _converted(self, node: torch.fx.Node, place: int, last: Mapping[torch.fx.Node, int]) -> Any:
        if node.op != "call_function" or "val" not in node.meta:
            raise _Involved
        args, kwargs = (_mapped(part, self.known) for part in (node.args, node.kwargs))
        if node.target is operator.getitem:
            source, at = args
            return self._item(source, at, node.meta["val"]) if isinstance(source, torch.fx.Node) else source[at]
        if not isinstance(node.target, torch._ops.OpOverload):
            raise _Involved
        if not node.target._schema.is_mutable:
            return self.call(node.target, args, kwargs, node.meta["val"])
        made = self.call(_without_writing(node.target, args, kwargs), args, kwargs, node.meta["val"])
        self._overwrite(args[0], made, place, last)
        return made

    def _overwrite(self, old: Any, new: Any, place: int, last: Mapping[torch.fx.Node, int]) -> None:
        """Let what is read later of a value be another; nothing else of its memory may be."""
        if self.memory[old].op == "placeholder" or not isinstance(new, torch.fx.Node):
            raise _Involved
        for node, value in self.known.items():
            if value is old:
                self.known[node] = new
            elif last.get(node, -1) > place and self.memory[old] in map(self.memory.get, _nodes(value)):
                raise _Involved

    # ---- calls

    def call(self, target: torch._ops.OpOverload, args: Any, kwargs: Any, value: Any) -> Any:
        """Add a call, or what it is made of; return its results."""
        simple = DIRECT.get(target)
        found = simple and simple(self, value, *args, **kwargs)
        if found is not None:
            return found
        if not is_taken_apart(target, self.table):
            return self.add(target, args, kwargs, value)
        return self._inlined(self._trace(target, args, kwargs), list(_nodes((args, kwargs))))

    def add(self, target: torch._ops.OpOverload, args: Any, kwargs: Any, value: Any) -> torch.fx.Node:
        """Add a call of a core operation."""
        schema = target._schema
        if schema.is_mutable or not self.is_read(str(target)):
            raise _Involved
        node = self.graph.create_node("call_function", target, args, kwargs, name=target.overloadpacket.__name__)
        node.meta["val"] = value
        is_view = any(result.alias_info is not None for result in schema.returns) or target._can_decompose()
        first = next(_nodes(args), None) if is_view else None
        self.memory[node] = node if first is None else self.memory[first]
        return node

    def _item(self, source: torch.fx.Node, at: Any, value: Any) -> torch.fx.Node:
        node = self.graph.create_node("call_function", operator.getitem, (source, at), {}, name="getitem")
        node.meta["val"] = value
        self.memory[node] = self.memory[source]
        return node

    def first(self, target: torch._ops.OpOverload, args: Any, value: Any) -> torch.fx.Node:
        """Add a call of a core operation of several results; return the first, whose type is known."""
        return self._item(self.add(target, args, {}, (value,)), 0, value)

    def _trace(self, target: torch._ops.OpOverload, args: Any, kwargs: Any) -> torch.fx.GraphModule:
        """Return what a call is made of, as a function of the nodes among its arguments."""
        places: dict[torch.fx.Node, int] = {}
        for node in _nodes((args, kwargs)):
            places.setdefault(node, len(places))
        key = (target, _key(args, places), _key(kwargs, places))
        if key not in self.traced:
            self.traced[key] = self._traced(target, args, kwargs, list(places))
        return self.traced[key]

    def _traced(self, target: Any, args: Any, kwargs: Any, nodes: list[torch.fx.Node]) -> torch.fx.GraphModule:
        function = self.table.get(target, target)

        def computed(*tensors: Any) -> Any:
            given = dict(zip(nodes, tensors, strict=True))
            return function(*_mapped(args, given), **_mapped(kwargs, given))

        with self.mode or FakeTensorMode(), torch.no_grad():
            examples = [_example(node.meta["val"]) for node in nodes]
            try:
                module = make_fx(computed, decomposition_table=dict(self.table))(*examples)
                if not any(map(_writes, module.graph.nodes)):
                    return module
                return make_fx(torch.func.functionalize(computed), decomposition_table=dict(self.table))(*examples)
            except Exception as error:  # whatever tracing meets: as a whole it may not, or says what it met
                raise _Involved from error

    def _inlined(self, module: torch.fx.GraphModule, operands: list[torch.fx.Node]) -> Any:
        known: dict[torch.fx.Node, Any] = {}
        given = iter(dict.fromkeys(operands))
        needed = _needed(module.graph)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "output":
                return _mapped(node.args[0], known)
            elif node.op != "call_function":
                raise _Involved
            elif node in needed and node.target is operator.getitem:
                source, at = _mapped(node.args, known)
                known[node] = self._item(source, at, node.meta["val"])
            elif node in needed:
                args, kwargs = (_mapped(part, known) for part in (node.args, node.kwargs))
                known[node] = self.add(node.target, args, kwargs, node.meta["val"])
        raise _Involved


def _mapped(argument: Any, known: Mapping[torch.fx.Node, Any]) -> Any:
    """Return arguments with other values in the place of nodes."""
    if isinstance(argument, torch.fx.Node):
        return known[argument]
    if isinstance(argument, (list, tuple)):
        return tuple(_mapped(a, known) for a in argument)
    if isinstance(argument, dict):
        return {name: _mapped(a, known) for name, a in argument.items()}
    return argument


def _nodes(argument: Any) -> Iterator[torch.fx.Node]:
    """Yield the nodes in arguments."""
    if isinstance(argument, torch.fx.Node):
        yield argument
    elif isinstance(argument, (list, tuple)):
        for part in argument:
            yield from _nodes(part)
    elif isinstance(argument, dict):
        yield from _nodes(list(argument.values()))


def _key(argument: Any, places: Mapping[torch.fx.Node, int]) -> Hashable:
    """Return what of arguments decides how a call is taken apart."""
    if isinstance(argument, torch.fx.Node):
        value = argument.meta["val"]
        if not isinstance(value, torch.Tensor) or _is_symbolic(value):
            raise _Involved
        strides = None if value.is_contiguous() else value.stride()
        return (places[argument], value.dtype, value.device, value.shape, strides, value.is_conj(), value.is_neg())
    if isinstance(argument, (list, tuple)):
        return tuple(_key(a, places) for a in argument)
    if isinstance(argument, dict):
        return tuple((name, _key(a, places)) for name, a in argument.items())
    return (type(argument), str(argument) if isinstance(argument, float) else argument)


def _example(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a call is traced with it. An axis of one element may have any stride, and PyTorch writes a
    product in another way where it is an odd one.
    """
    if not value.is_contiguous() or value.is_conj() or value.is_neg():
        return value.detach()
    return torch.empty_like(value, memory_format=torch.contiguous_format, requires_grad=False)


def _is_symbolic(tensor: torch.Tensor) -> bool:
    return not all(isinstance(extent, int) for extent in tensor.shape)


def _writes(node: torch.fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _needed(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that results depend on, and those that write."""
    needed: set[torch.fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or node in needed or _writes(node):
            needed |= {node, *node.all_input_nodes}
    return needed


def _last_reads(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """Return the place of the last node that reads each node."""
    return {read: place for place, node in enumerate(graph.nodes) for read in node.all_input_nodes}


def _without_writing(target: torch._ops.OpOverload, args: Any, kwargs: Any) -> torch._ops.OpOverload:
    """Return the operation that computes what another writes over its first operand."""
    written = [argument for argument in target._schema.arguments if argument.alias_info is not None]
    name = target.overloadpacket.__name__
    packet = getattr(getattr(torch.ops, target.namespace), name.removesuffix("_"), None)
    types = {getattr(node.meta["val"], "dtype", None) for node in _nodes((args, kwargs))}
    # Of several types the result would have the wider one, and what is written the first operand's.
    if not name.endswith("_") or name.endswith("__") or len(written) != 1 or len(types) != 1 or packet is None:
        raise _Involved
    found = getattr(packet, target._overloadname, None)
    if found is None or found._schema.is_mutable:
        raise _Involved
    return found  # type: ignore[no-any-return]


# ---- calls of which every one of a network has other shapes, so that tracing each would take long


def _convolution(spatial: int) -> Callable[..., torch.fx.Node | None]:
    def direct(
        parts: _Parts, value: Any, x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> torch.fx.Node | None:  # fmt: skip
        if x.meta["val"].dim() != spatial + 2:
            return None  # without a batch
        lists = ((list(v) if isinstance(v, (list, tuple)) else [v]) for v in (stride, padding, dilation))
        stride, padding, dilation = (v if len(v) == spatial else v * spatial for v in lists)
        arguments = (x, weight, bias, stride, padding, dilation, False, [0] * spatial, groups)
        return parts.add(aten.convolution.default, arguments, {}, value)

    return direct


def _batch_norm(
    parts: _Parts, value: Any, x: Any, scale: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float,
    epsilon: float, _: Any = True,
) -> torch.fx.Node | None:  # fmt: skip
    if training:
        return None
    name = aten._native_batch_norm_legit_no_training.default
    return parts.first(name, (x, scale, bias, mean, var, momentum, epsilon), value)


def _dropout(parts: _Parts, value: Any, x: Any, ratio: float, training: bool) -> torch.fx.Node | None:
    return None if training else x


#: How a call of an operation is added, or None is returned where that is not as simple.
DIRECT: dict[torch._ops.OpOverload, Callable[..., torch.fx.Node | None]] = {
    aten.conv1d.default: _convolution(1), aten.conv2d.default: _convolution(2), aten.conv3d.default: _convolution(3),
    aten.batch_norm.default: _batch_norm, aten.dropout.default: _dropout,
}  # fmt: skip
