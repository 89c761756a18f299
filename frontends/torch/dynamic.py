"""Captured graphs whose shapes or numbers Dynamo left open: ours are compiled for each that occur."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

#: Compiles a captured module for arguments.
CompileStatic = Callable[[Any, Sequence[Any]], Callable[..., Any]]


def is_dynamic(example: Any) -> bool:
    """Whether Dynamo captured a symbol in the place of a number, or a tensor of symbolic shape."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(extent, torch.SymInt) for extent in example.shape)
    return isinstance(example, torch.SymInt)


def by_shape(module: Any, compile_static: CompileStatic) -> Callable[..., Any]:
    """Return a function that compiles for the shapes and numbers of its arguments: ours are static where Dynamo would
    have them symbolic.
    """
    compiled: dict[Any, Callable[..., Any]] = {}
    numbers = _numbers(module)

    def call(*arguments: Any) -> Any:
        known = {at: arguments[at].item() for at in numbers}
        key = tuple(
            (a.shape, a.stride(), a.dtype, a.device, a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in arguments
        )
        key = (torch.is_grad_enabled(), *known.values(), *key)
        if key not in compiled:
            with tracing(TracingContext(FakeTensorMode())):  # autograd notes there what it finds of a graph
                compiled[key] = compile_static(_with_numbers(module, known), arguments)
        return compiled[key](*arguments)

    return call


def _numbers(module: Any) -> tuple[int, ...]:
    """Return the places of inputs of which only the number is read: Dynamo passes a float as a tensor without axes."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(at for at, node in enumerate(places) if _is_number(node))


def _is_number(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    without_axes = isinstance(example, torch.Tensor) and example.dim() == 0 and example.device.type == "cpu"
    return without_axes and bool(node.users) and all(_is_read(user) for user in node.users)


def _is_read(user: torch.fx.Node) -> bool:
    return user.op == "call_method" and user.target == "item"


def _with_numbers(module: Any, known: Mapping[int, float]) -> Any:
    """Return a module that has numbers where it would read them."""
    if not known:
        return module
    made = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    places = [node for node in made.graph.nodes if node.op == "placeholder"]
    for at, number in known.items():
        for user in list(places[at].users):
            user.replace_all_uses_with(number)
            made.graph.erase_node(user)
    made.recompile()
    return made
