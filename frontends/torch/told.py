"""What a captured module is, in words: everything that decides what autograd makes of it, and what we make of that.

A later process that captures the same words needs neither again. Nothing is said of a module with parts whose meaning
words cannot give: functions and operators of the user's own, subclasses of tensors, symbols.
"""

from __future__ import annotations

import hashlib
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from .devices import KINDS
from .held import PLAIN
from .reader import array_of

#: Arguments that are told as they are written; subclasses of these may mean more.
_LITERALS = (type(None), bool, int, float, complex, str, type(...), torch.dtype, torch.device, torch.layout,
             torch.memory_format)  # fmt: skip
#: Where functions of PyTorch and Python are found that do not know it themselves.
_HOMES: tuple[Any, ...] = (torch, torch._C._nn, torch.nn.functional, operator, math)
#: Namespaces of operators that come with PyTorch.
_OWN = ("aten", "prims", "higher_order")


class _UntoldError(Exception):
    """Something that words cannot give."""


def told(
    module: Any, arguments: Sequence[Any], held: Collection[int], frozen: Mapping[int, torch.Tensor]
) -> tuple[str | bytes, ...] | None:
    """Return in words what a captured module is for these arguments, of which some are held by a model and some are to
    become constants; None where words do not do.
    """
    try:
        given = [_argument(value, n in held) for n, value in enumerate(arguments)]
        fixed = [f"{n} {_elements(tensor)}" for n, tensor in frozen.items()]
        return (torch.__version__, *_surroundings(), *given, "frozen", *fixed, *_graph(module))
    except _UntoldError:
        return None


def _surroundings() -> Iterator[str]:
    """Yield what PyTorch's settings are that its tracing asks."""
    yield repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()))
    yield repr([(kind, _autocast(kind)) for kind in ("cpu", "cuda")])
    asked = ("cudnn_enabled", "cudnn_deterministic", "mkldnn_enabled", "deterministic_algorithms")
    yield repr([getattr(torch._C, f"_get_{name}", lambda: None)() for name in asked])


def _autocast(kind: str) -> object:
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)


def _argument(value: Any, held: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return _literal(value)
    if type(value) not in PLAIN or value.layout is not torch.strided or value.device.type not in KINDS:
        raise _UntoldError
    flags = (held, value.requires_grad, value.is_inference(), value.is_conj(), value.is_neg())
    return repr((value.dtype, tuple(value.shape), value.stride(), str(value.device), flags))


def _literal(value: Any) -> str:
    if type(value) not in _LITERALS:
        raise _UntoldError
    return repr(value)


def _elements(tensor: torch.Tensor) -> str:
    """Return a tensor's type, and a digest of its elements."""
    if type(tensor) not in PLAIN or isinstance(tensor, torch._subclasses.FakeTensor):
        raise _UntoldError
    data = hashlib.sha256(array_of(tensor).reshape(-1).view("uint8").data).hexdigest()
    return repr((tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device), data))


def _graph(module: Any) -> Iterator[str]:
    """Yield each node of a module's graph, and of the graphs within."""
    numbers: dict[torch.fx.Node, int] = {}
    for node in module.graph.nodes:
        yield f"{node.op} {_target(module, node)} {_words(node.args, numbers)} {_words(node.kwargs, numbers)}"
        numbers[node] = len(numbers)


def _target(module: Any, node: torch.fx.Node) -> str:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op == "call_function":
        return _function(node.target)
    if node.op != "get_attr":
        raise _UntoldError
    found = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if isinstance(found, torch.fx.GraphModule):
        return f"[{'; '.join(_graph(found))}]"
    if isinstance(found, torch.Tensor):
        return _elements(found)
    raise _UntoldError


def _words(value: Any, numbers: Mapping[torch.fx.Node, int]) -> str:
    """Return an argument of a node."""
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return f"{kind}({', '.join(_words(item, numbers) for item in value)})"
    if isinstance(value, dict):
        items = (f"{_literal(key)}: {_words(item, numbers)}" for key, item in value.items())
        return f"dict({', '.join(items)})"
    if isinstance(value, slice):
        return f"slice{_words((value.start, value.stop, value.step), numbers)}"
    return _literal(value)


def _function(target: Callable[..., Any] | str) -> str:
    """Return where a function of PyTorch's or Python's own is found."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        space = getattr(target, "namespace", None) or str(target).partition(".")[0]
        if space not in _OWN:
            raise _UntoldError
        return f"{space} {target}"
    names = [str(getattr(target, name, "")) for name in ("__qualname__", "__name__")]  # PyTorch sets the second one
    module = str(getattr(target, "__module__", "") or "")
    known = module.partition(".")[0] in ("torch", "_operator", "builtins", "math")
    for home in ((sys.modules.get(module),) if known else ()) + _HOMES:
        for name in names:
            if name and _found(home, name) is target:
                return f"{getattr(home, '__name__', '')} {name}"
    raise _UntoldError


def _found(home: Any, path: str) -> Any:
    for part in path.split("."):
        home = getattr(home, part, None)
    return home
