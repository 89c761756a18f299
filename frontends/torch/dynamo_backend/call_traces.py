"""Captured modules without gradients, traced call by call.

PyTorch's autograd traces a whole module twice. Dynamo knows the type of every value, so each call is traced alone, once
for all calls with operands of the same types: the layers of a decoder cost no more than one.

    a = linear(x, w0);  b = linear(a, w1)    ->    t0 = t(w0);  a = mm(x, t0);  t1 = t(w1);  b = mm(a, t1)

The graph is as autograd's: core operations, functional but for copies to inputs at the end. Other modules are left to
autograd: results that are views of inputs or share memory, writes to values whose views are read, nested graphs.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from attrs import define, field, frozen
from torch._C import DispatchKey, DispatchKeySet
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch._aot_autograd import functional_utils as functions
from torch._guards import TracingContext
from torch._subclasses import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_map

from ..calls import is_in_place, is_view, key_of, last_reads, map_nodes, needed_nodes, nodes_in, tensor_of
from ..decompositions import training_decompositions
from .parameters import PLAIN_TENSORS, TRACED_BY_CALL

_LOG, aten = logging.getLogger("cuts.frontends"), torch.ops.aten
_FUNCTIONALIZE = DispatchKeySet(DispatchKey.Functionalize)
#: Operations that read the memory that a view shows: a trace has no example of it.
_MEMORY_READERS = [getattr(aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")]


def trace_calls(module: Any, arguments: Sequence[Any]) -> torch.fx.GraphModule | None:
    """Return a module in core operations, None where autograd traces it."""
    plain = (type(a) in (*PLAIN_TENSORS, FakeTensor) for a in arguments)
    if not all(plain) or any(a.layout is not torch.strided or a.is_conj() or a.is_neg() for a in arguments):
        return None
    grad = torch.is_grad_enabled()
    with ExitStack() as contexts, torch.no_grad():
        try:
            mode = getattr(TracingContext.try_get(), "fake_mode", None) or FakeTensorMode()
            return _CallTrace(module, arguments, contexts, contexts.enter_context(mode), grad).trace()
        except Exception as error:  # any error of a call: autograd explains it
            _LOG.info("cuts: a module is traced as a whole: %s: %s", type(error).__name__, error)
    return None


class _InvolvedError(Exception):
    """Raised where a module cannot be traced call by call."""


@frozen
class _Trace:
    """Functional core operations of one call: its results and the new elements of operands, by place."""

    places: tuple[torch.fx.Node, ...]
    nodes: tuple[torch.fx.Node, ...]
    results: Any
    written: Mapping[int, torch.fx.Node]

    @classmethod
    def of(cls, call: Callable[..., Any], examples: Sequence[torch.Tensor], table: dict[Any, Any]) -> _Trace:
        """Return the trace of a call of examples."""
        numbers: list[int] = []

        def functional(*tensors: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(_FUNCTIONALIZE), FunctionalTensorMode():
                given = [functions.to_fun(tensor) for tensor in tensors]
                found = call(*given)
            pairs = zip(given, tensors, strict=True)
            if any(functions.has_metadata_mutation(new, old, check_only_storage_mutation=False) for new, old in pairs):
                raise _InvolvedError("a call changes the shape of an operand")
            numbers[:] = [n for n, tensor in enumerate(given) if functions.has_data_mutation(tensor)]
            return tree_map(functions.from_fun, (found, [given[n] for n in numbers]))

        with enable_python_dispatcher():
            graph: torch.fx.Graph = make_fx(functional, decomposition_table=table)(*examples).graph
        needed, (output,) = needed_nodes(graph), graph.find_nodes(op="output")
        own = tuple(node for node in graph.nodes if node in needed and node.op not in ("placeholder", "output"))
        if any(node.op != "call_function" or node.target in _MEMORY_READERS or is_in_place(node) for node in own):
            raise _InvolvedError("a call has tensors or graphs of its own")
        results, new = output.args[0]
        return cls(tuple(graph.find_nodes(op="placeholder")), own, results, dict(zip(numbers, new, strict=True)))


@define
class _CallTrace:
    """Graph of a module: `known` has each node's value, `viewed` the operand that each view shows."""

    module: Any
    arguments: Sequence[Any]
    contexts: ExitStack
    mode: FakeTensorMode
    grad: bool
    table: Mapping[Any, Any] = field(factory=training_decompositions)
    graph: torch.fx.Graph = field(factory=torch.fx.Graph)
    inputs: dict[torch.fx.Node, torch.fx.Node] = field(factory=dict)
    known: dict[torch.fx.Node, Any] = field(factory=dict)
    viewed: dict[torch.fx.Node, torch.fx.Node] = field(factory=dict)
    traces: dict[Hashable, _Trace] = field(factory=dict)
    autocast: list[Any] = field(factory=list)

    def trace(self) -> torch.fx.GraphModule:
        """Return the module in core form."""
        grad, source, last = self.grad, self.module.graph, last_reads(self.module.graph)
        for place, node in enumerate(source.nodes):
            if node.op == "placeholder":
                self._place(node)
            elif node.op == "output":
                self._finish(node.args[0])
            else:
                self.known[node] = self._convert(node, place, last)
        if self.grad is not grad or self.autocast:
            raise _InvolvedError("it leaves a mode changed")
        return torch.fx.GraphModule({}, self.graph)

    def _place(self, node: torch.fx.Node) -> None:
        given, copied = self.arguments[len(self.inputs)], self.graph.placeholder(f"arg{len(self.inputs)}_1")
        is_fake = isinstance(given, FakeTensor)
        copied.meta["val"] = given if is_fake else self.mode.from_tensor(given, static_shapes=True)
        self.known[node] = self.inputs[node] = copied

    def _convert(self, node: torch.fx.Node, place: int, last: Mapping[torch.fx.Node, int]) -> Any:
        """Add the core operations of a call; return its value."""
        args, kwargs = map_nodes(node.args, self.known), map_nodes(node.kwargs, self.known)
        if node.op not in ("call_function", "call_method"):
            raise _InvolvedError(f"{node.name} is no call")
        target: Any = getattr(torch.Tensor, str(node.target)) if node.op == "call_method" else node.target
        if target is torch._C._set_grad_enabled:
            (self.grad,) = args
        elif target is _enter_autocast:
            self.autocast.append(_enter_autocast(*args))
            self.contexts.callback(self._exit_autocast, len(self.autocast))
        elif target is _exit_autocast:
            self._exit_autocast(len(self.autocast))
        elif target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        elif target is not torch._C._log_api_usage_once:  # it computes nothing
            operands = list(dict.fromkeys(nodes_in((args, kwargs))))
            if not operands and not isinstance(node.meta.get("example_value"), torch.Tensor):
                raise _InvolvedError(f"{node.name} may change a mode")
            return self._inline(self._trace_of(target, args, kwargs, operands), operands, place, last)
        return None

    def _exit_autocast(self, depth: int) -> None:
        if len(self.autocast) >= depth:
            _exit_autocast(self.autocast.pop())  # type: ignore[no-untyped-call]

    def _trace_of(self, target: Any, args: Any, kwargs: Any, operands: Sequence[torch.fx.Node]) -> _Trace:
        """Return the core operations of a call, as a function of the nodes among its arguments."""
        if isinstance(target, torch._ops.HigherOrderOperator) or any(tensor_of(node) is None for node in operands):
            raise _InvolvedError("a call has nested graphs, or other operands than tensors")
        places = {node: place for place, node in enumerate(operands)}
        modes = tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in ("cpu", "cuda"))
        key = (target, modes if self.autocast else (), key_of(args, places), key_of(kwargs, places))
        if key not in self.traces:

            def call(*tensors: Any) -> Any:
                given = dict(zip(operands, tensors, strict=True))
                return target(*map_nodes(args, given), **map_nodes(kwargs, given))

            examples = [node.meta["val"].detach() for node in operands]  # equal traces share theirs
            self.traces[key] = _Trace.of(call, examples, dict(self.table))
        return self.traces[key]

    def _inline(
        self, trace: _Trace, operands: Sequence[torch.fx.Node], place: int, last: Mapping[torch.fx.Node, int]
    ) -> Any:
        """Add the operations of a trace; return its results."""
        known: dict[torch.fx.Node, Any] = dict(zip(trace.places, operands, strict=True))
        for node in trace.nodes:
            args = map_nodes(node.args, known)
            target: Any = node.target
            name = getattr(target, "overloadpacket", target).__name__
            made = self.graph.create_node("call_function", target, args, map_nodes(node.kwargs, known), name=name)
            known[node] = made
            if (target is operator.getitem or is_view(target)) and (shown := [*nodes_in(args)]):
                self.viewed[made] = shown[0]
            made.meta["val"] = self._example_of(made, node.meta.get("val"))
        for number, new in trace.written.items():
            if [*map(self._memory, operands)].count(self._memory(operands[number])) > 1:
                raise _InvolvedError("a call reads memory that it writes by another operand")
            self._overwrite(operands[number], map_nodes(new, known), place, last)
        return map_nodes(trace.results, known)

    def _overwrite(self, old: torch.fx.Node, new: Any, place: int, last: Mapping[torch.fx.Node, int]) -> None:
        """Replace a value for readers after the call at `place`.

        No other value in its memory may be read, and no input be a view of it.
        """
        before, after = (tensor_of(each) if isinstance(each, torch.fx.Node) else None for each in (old, new))
        if before is None or after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
            raise _InvolvedError("a write changes the type of a value")
        memory = self._memory(old)
        for node, value in self.known.items():
            if value is old:
                self.known[node] = new
            elif (node in self.inputs or last.get(node, -1) > place) and memory in map(self._memory, nodes_in(value)):
                raise _InvolvedError("a value is written whose views are read")

    def _memory(self, node: torch.fx.Node) -> torch.fx.Node:
        while node in self.viewed:
            node = self.viewed[node]
        return node

    def _finish(self, results: Any) -> None:
        """Add writes of inputs and the results; each result has a memory of its own."""
        nodes = [*map_nodes(results, self.known)]
        written = {source: new for source, old in self.inputs.items() if (new := self.known[source]) is not old}
        every = [*nodes, *written.values()]
        if not nodes or not all(isinstance(n, torch.fx.Node) and tensor_of(n) is not None for n in every):
            raise _InvolvedError("a result is no tensor")
        memories = {self._memory(node) for node in every}
        if len(memories) < len(every) or not memories.isdisjoint(self.inputs.values()):
            raise _InvolvedError("results share memory")
        storages = [a.untyped_storage()._cdata for a in self.arguments]
        for n in (n for n, source in enumerate(self.inputs) if source in written):
            if self.arguments[n].requires_grad or storages.count(storages[n]) > 1:
                raise _InvolvedError("an input is written that needs a gradient, or shares its memory")
        for source, value in written.items():
            self.graph.call_function(aten.copy_.default, (self.inputs[source], value)).meta["val"] = value.meta["val"]
        self.graph.output(tuple(nodes)).meta[TRACED_BY_CALL] = True

    def _example_of(self, made: torch.fx.Node, traced: Any) -> Any:
        """Return an example in the viewed value's memory, or its own."""
        base = self.viewed.get(made)  # nodes of equal calls have one trace, but not one memory
        if made.target is operator.getitem and base is not None:
            return base.meta["val"][made.args[1]]
        shown = None if base is None else tensor_of(base)

        def own(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            size, form = value.untyped_storage().nbytes(), (value.storage_offset(), value.shape, value.stride())
            with no_dispatch():  # operations of fake tensors take 20 times as long
                memory = torch.empty(size, dtype=torch.uint8, device="meta") if shown is None else shown
                like = torch.empty(0, dtype=value.dtype, device="meta").set_(memory.untyped_storage(), *form)
            return FakeTensor(self.mode, like, value.device)

        return tree_map(own, traced)
