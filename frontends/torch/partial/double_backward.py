"""Gradients of gradients: backward passes with `create_graph=True` through a compiled module.

Autograd's node of a compiled module has a backward graph that is not differentiable. Where a backward pass wants a
graph of its own (autograd enables gradients in `backward` then), PyTorch repeats the module's call eagerly:

    backward(tangents)   ->   outputs = module(views of the inputs)
                              grad(outputs, views, tangents, create_graph=True)

Views separate inputs that depend on each other. The node holds its call's inputs until its backward pass begins;
intermediate values that the backward graph does not read it holds weakly, so that no memory is added. Where a call
cannot be repeated, the compiled graph answers, and PyTorch raises an error where the answer is differentiated.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import torch
from attrs import define, field, frozen
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import map_arg
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.weak import TensorWeakRef

from ..captured_graph import UncompiledWarning

_version = attrgetter("_version")
#: Attribute of an autograd node.
_CALL = "cuts_call"
#: Nodes between a result and the node of its module: views.
MAX_VIEWS = 3
#: Parameters without saved elements whose versions are compared: optimisers change all.
COMPARED_PARAMETERS = 2


class _UnrepeatableError(Exception):
    """Raised where a call cannot be repeated."""


@frozen
class _Inputs:
    """Inputs of a call, some of them weak references, and versions of tensors that are not saved."""

    values: Sequence[Any]
    versions: tuple[int, ...]


@define(eq=False, slots=False)
class RepeatableModule:
    """Captured module whose calls can be repeated.

    `held` are the numbers of parameters, `joint` is autograd's graph of a module that updates inputs.
    """

    module: Any
    held: Collection[int]
    joint: torch.fx.Graph | None = None
    compared: tuple[int, ...] = ()
    weak: tuple[int, ...] = ()
    warned: set[str] = field(factory=set)
    autocast: list[tuple[str, torch.dtype, bool]] = field(init=False)

    @autocast.default
    def _autocast(self) -> list[tuple[str, torch.dtype, bool]]:
        return [(d, torch.get_autocast_dtype(d), torch.is_autocast_enabled(d)) for d in ("cpu", "cuda")]

    @cached_property
    def overwrites(self) -> bool:
        """True where results depend on inputs that the module updates."""
        graph, self.joint = self.joint, None
        return graph is not None and depends_on_updates(graph)

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return autograd's function of the module, whose first call extends its nodes."""
        known: list[type] = []

        def call(*arguments: Any) -> Any:
            results = function(*arguments)
            is_traced = any(isinstance(value, FakeTensor) for value in arguments)  # DDP's, which have no memory
            if not (known or is_traced) and (node := _node_of(results, len(arguments))) is not None:
                known.append(node._forward_cls)
                self._extend(node, arguments)
            return results

        return call

    def _extend(self, node: Any, arguments: Sequence[Any]) -> None:
        """Let the nodes of a class refer to their inputs, and repeat calls where gradients are differentiated."""
        kind = node._forward_cls
        hooked = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # checkpoints compute to unpack
        saved = {tensor.data_ptr() for tensor in (() if hooked else node.saved_tensors)}
        updated = kind.metadata.mutated_inp_runtime_indices
        self.joint = self.joint if updated else None
        tensors = [n for n, value in enumerate(arguments) if isinstance(value, torch.Tensor) and n not in updated]
        unsaved = [n for n in tensors if arguments[n].data_ptr() not in saved]
        self.weak = tuple(n for n in unsaved if n not in self.held)
        self.compared = (*self.weak, *[n for n in unsaved if n in self.held][:COMPARED_PARAMETERS])
        forward, backward, boxed = kind.forward, kind.backward, getattr(kind, "boxed_grads_call", False)

        def noting_forward(ctx: Any, *inputs: Any) -> Any:
            setattr(ctx, _CALL, self._note_inputs(inputs))
            return forward(ctx, *inputs)

        def repeating_backward(ctx: Any, *tangents: Any) -> Any:
            if torch.is_grad_enabled():
                try:
                    return self._repeat(ctx, kind.metadata, tangents[0] if boxed else tangents)
                except _UnrepeatableError as error:
                    self._warn(f"gradients of a compiled module cannot be differentiated: {error}")
            elif not torch._C._autograd._get_current_graph_task_keep_graph():
                setattr(ctx, _CALL, None)
            return backward(ctx, *tangents)

        kind.forward, kind.backward = staticmethod(noting_forward), staticmethod(repeating_backward)
        setattr(node, _CALL, self._note_inputs(arguments))

    def _note_inputs(self, inputs: Sequence[Any]) -> _Inputs:
        values = inputs
        for n in self.weak:
            if not inputs[n].is_leaf:
                values = list(values)
                values[n] = TensorWeakRef(inputs[n])
        return _Inputs(values, tuple([_version(inputs[n]) for n in self.compared]))

    def _repeat(self, ctx: Any, facts: Any, tangents: Sequence[Any]) -> tuple[Any, ...]:
        """Return the gradients of a node's inputs as values of PyTorch's graph."""
        _ = ctx.saved_tensors  # PyTorch raises an error where one is released or changed
        inputs, first = self._inputs_of(ctx), facts.num_mutated_inp_runtime_indices
        own = tangents[first : first + facts.num_outputs]
        if any(t is not None for t in (*tangents[:first], *tangents[first + facts.num_outputs :])):
            raise _UnrepeatableError("it updates an input that has a gradient, or its results share memory")
        wanted = [n for n, needs in enumerate(ctx.needs_input_grad) if needs]
        views = [inputs[n].view_as(inputs[n]) for n in wanted]
        for n, view in zip(wanted, views, strict=True):
            inputs[n] = view
        for n in facts.mutated_inp_runtime_indices:
            inputs[n] = inputs[n].clone()
        results = self._call(inputs)
        pairs = [(r, t) for r, t in zip(results, own, strict=True) if t is not None and _has_gradient(r)]
        found = torch.autograd.grad(
            [result for result, _ in pairs],
            views,
            [tangent for _, tangent in pairs],
            create_graph=True,
            allow_unused=True,
        )
        self._warn("a backward pass with create_graph=True repeats a compiled module in PyTorch")
        gradients = dict(zip(wanted, found, strict=True))
        return tuple(gradients.get(n) for n in range(len(inputs)))

    def _inputs_of(self, ctx: Any) -> list[Any]:
        noted: _Inputs = getattr(ctx, _CALL)
        inputs = [value() if isinstance(value, TensorWeakRef) else value for value in noted.values]
        if self.overwrites:
            raise _UnrepeatableError("they depend on elements that it overwrites")
        if any(inputs[n] is None for n in self.weak):
            raise _UnrepeatableError("an input of it was released; keep a reference to it")
        if tuple([_version(inputs[n]) for n in self.compared]) != noted.versions:
            raise _UnrepeatableError("an input of it has changed since its call")
        return inputs

    def _call(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return the module's results, computed by PyTorch in the settings of its compilation."""
        devices = {value.device for value in inputs if isinstance(value, torch.Tensor) and value.is_cuda}
        with ExitStack() as settings:
            for kind, dtype, enabled in self.autocast:
                settings.enter_context(torch.autocast(kind, dtype, enabled))
            settings.enter_context(torch.random.fork_rng(devices))
            before = _random_states(devices)
            results: Sequence[Any] = self.module(*inputs)
            if not all(map(torch.equal, before, _random_states(devices))):
                raise _UnrepeatableError("it draws random numbers")
        return results

    def _warn(self, text: str) -> None:
        if text not in self.warned:
            self.warned.add(text)
            warnings.warn(text, UncompiledWarning, stacklevel=4)


def depends_on_updates(graph: torch.fx.Graph) -> bool:
    """Return whether other results depend on inputs that a graph updates."""
    (output,) = graph.find_nodes(op="output")
    kinds = [getattr(kind, "mutated_input", None) for kind in output.meta.get("desc", ())]
    updated = {*kinds} - {None}
    found = _dependents(graph, [n for n in graph.find_nodes(op="placeholder") if n.meta.get("desc") in updated])
    others = (value for value, kind in zip(output.args[0], kinds, strict=False) if kind is None)
    return any(value in found for value in others if isinstance(value, torch.fx.Node))


def _dependents(graph: torch.fx.Graph, start: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that depend on some, themselves included; of several results, those that do."""
    found, parts = {*start}, dict[Any, Collection[int]]()
    for node in graph.nodes:
        source, number = node.args if node.target is operator.getitem else (None, None)
        if number in parts[source] if source in parts else not found.isdisjoint(node.all_input_nodes):
            found.add(node)
            if isinstance(node.meta.get("val"), tuple):
                parts[node] = _dependent_results(node, found)
    return found


def _dependent_results(node: torch.fx.Node, found: Collection[torch.fx.Node]) -> set[int]:
    """Return the numbers of a call's results that depend on operands `found`, by its decomposition."""
    operands, target = node.all_input_nodes, cast("Any", node.target)

    def call(*values: Any) -> Any:
        known = dict(zip(operands, values, strict=True))
        return target(*map_arg(node.args, known.__getitem__), **map_arg(node.kwargs, known.__getitem__))

    table: Any = core_aten_decompositions()
    graph = make_fx(call, decomposition_table=table)(*(n.meta["val"] for n in operands)).graph
    places = zip(graph.find_nodes(op="placeholder"), operands, strict=True)
    reached = _dependents(graph, [place for place, operand in places if operand in found])
    (output,) = graph.find_nodes(op="output")
    return {number for number, value in enumerate(output.args[0]) if value in reached}


def _random_states(devices: Collection[torch.device]) -> list[torch.Tensor]:
    return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, devices)]


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def _node_of(results: Any, count: int) -> Any:
    """Return the autograd node of a module of `count` inputs, by its results."""
    for result in results if isinstance(results, (tuple, list)) else (results,):
        node: Any = result.grad_fn if isinstance(result, torch.Tensor) else None
        for _ in range(MAX_VIEWS):
            kind = getattr(node, "_forward_cls", None)
            if hasattr(kind, "metadata") and len(node.needs_input_grad) == count:
                return node
            node = node.next_functions[0][0] if node is not None and node.next_functions else None
    return None
