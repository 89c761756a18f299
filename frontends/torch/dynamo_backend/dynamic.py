"""Captured graphs of dynamic shape, compiled for each shape that occurs."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode

from ..settings import is_capturing

#: Compiles a captured module for arguments.
CompileStatic = Callable[[Any, Sequence[Any]], Callable[..., Any]]


def is_dynamic(example: Any) -> bool:
    """Return whether Dynamo captured a symbol, or a symbolic shape."""
    if isinstance(example, torch.Tensor):
        return any(isinstance(extent, torch.SymInt) for extent in example.shape)
    return isinstance(example, torch.SymInt)


class FunctionCache:
    """Cache of compiled functions by shapes and numbers, least recently used.

    It keeps at most `limit`. An evicted function releases its memory on the host and on the device when its last call
    has returned. One that was called during a stream capture stays, since the CUDA graph reads its memory. It is
    thread-safe; two threads that ask for one key at once may both compile.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._functions: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
        self._recorded: dict[Any, Callable[..., Any]] = {}
        self._changing = Lock()

    def __len__(self) -> int:
        """Return the number of cached functions."""
        return len(self._functions)

    def find(self, key: Any) -> Callable[..., Any] | None:
        """Return the function of a key, which becomes the most recently used."""
        with self._changing:
            found = self._functions.get(key)
            if found is not None:
                self._functions.move_to_end(key)
            return found or self._recorded.get(key)

    def hold(self, key: Any, function: Callable[..., Any]) -> None:
        """Keep a function that a CUDA graph needs beyond the limit."""
        with self._changing:
            self._recorded[key] = function

    def make_room(self) -> None:
        """Evict the least recently used functions until one more fits."""
        self._drop((self.limit or 1) - 1)

    def keep(self, key: Any, function: Callable[..., Any]) -> None:
        """Cache a function as the most recently used one."""
        with self._changing:
            self._functions[key] = function
            self._functions.move_to_end(key)
        self._drop(self.limit or 1)

    def _drop(self, most: int) -> None:
        dropped = []
        with self._changing:
            while self.limit is not None and len(self._functions) > most:
                dropped.append(self._functions.popitem(last=False)[1])
        del dropped  # outside of the lock: finalizers run here


#: Returns the function of a bucket that serves numbers and arguments, None where none does.
FindBucket = Callable[[Mapping[int, float], Sequence[Any]], "Callable[..., Any] | None"]


def compile_by_shape(
    module: Any, compile_static: CompileStatic, limit: int | None = None, find_bucket: FindBucket | None = None
) -> Callable[..., Any]:
    """Return a function that compiles for the shapes of its arguments.

    Arguments that `find_bucket` serves share the graphs of their buckets. It caches `limit` plans of others.
    """
    compiled = FunctionCache(limit)
    numbers = _numbers(module)

    def call(*arguments: Any) -> Any:
        known = {at: arguments[at].item() for at in numbers}
        served = find_bucket(known, arguments) if find_bucket is not None else None
        if served is not None:
            return served(*arguments)
        key = tuple(
            (a.shape, a.stride(), a.dtype, a.device, a.requires_grad) if isinstance(a, torch.Tensor) else a
            for a in arguments
        )
        key = (torch.is_grad_enabled(), *known.values(), *key)
        function = compiled.find(key)
        if function is None:
            compiled.make_room()
            with tracing(TracingContext(FakeTensorMode())):  # autograd records its findings there
                function = compile_static(replace_numbers(module, known), arguments)
            compiled.keep(key, function)
        if _are_captured(arguments):
            compiled.hold(key, function)
        return function(*arguments)

    return call


def _are_captured(arguments: Sequence[Any]) -> bool:
    """Return whether the current stream of the arguments' GPU is being captured."""
    devices = (a.device for a in arguments if isinstance(a, torch.Tensor) and a.device.type == "cuda")
    device = next(devices, None)
    return device is not None and is_capturing(device)


def _numbers(module: Any) -> tuple[int, ...]:
    """Return the positions of number inputs: Dynamo passes a float as a tensor without axes."""
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(at for at, node in enumerate(places) if _is_number(node))


def _is_number(node: torch.fx.Node) -> bool:
    example = node.meta.get("example_value")
    without_axes = isinstance(example, torch.Tensor) and example.dim() == 0 and example.device.type == "cpu"
    return without_axes and bool(node.users) and all(_is_read(user) for user in node.users)


def _is_read(user: torch.fx.Node) -> bool:
    return user.op == "call_method" and user.target == "item"


def replace_numbers(module: Any, known: Mapping[int, float]) -> Any:
    """Return a module with numbers in place of reads of them."""
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
