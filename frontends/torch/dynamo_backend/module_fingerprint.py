"""Module fingerprint: all facts that determine autograd's and our result.

A later process that captures an equal module needs neither again. A module has no fingerprint where a part of it cannot
be described: functions and operators of the user's own, subclasses of tensors, symbols.
"""

from __future__ import annotations

import hashlib
import math
import operator
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch

from ..devices import KINDS
from .parameters import PLAIN_TENSORS

#: Argument classes whose `repr` is complete; subclasses of these may carry more.
_LITERALS = (type(None), bool, int, float, complex, str, type(...), torch.dtype, torch.device, torch.layout,
             torch.memory_format)  # fmt: skip
#: Modules of functions of PyTorch and Python that do not name their own.
_MODULES: tuple[Any, ...] = (torch, torch._C._nn, torch.nn.functional, operator, math)
#: Namespaces of operators that come with PyTorch.
_NAMESPACES = ("aten", "prims", "higher_order")


class _UndescribedError(Exception):
    """Raised where a part of a module cannot be described."""


def module_fingerprint(
    module: Any, arguments: Sequence[Any], held: Collection[int], frozen: Mapping[int, torch.Tensor]
) -> tuple[str | bytes, ...] | None:
    """Return the fingerprint of a captured module for arguments, else None.

    `held` are its parameters and buffers, `frozen` the ones that become constants.
    """
    try:
        given = [_argument(value, n in held) for n, value in enumerate(arguments)]
        fixed = [f"{n} {_elements(tensor)}" for n, tensor in frozen.items()]
        return (torch.__version__, *_settings(), *given, "frozen", *fixed, *_graph(module))
    except _UndescribedError:
        return None


def _settings() -> Iterator[str]:
    """Yield the settings of PyTorch that tracing reads."""
    yield repr((torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()))
    yield repr([(kind, _autocast(kind)) for kind in ("cpu", "cuda")])
    asked = ("cudnn_enabled", "cudnn_deterministic", "mkldnn_enabled", "deterministic_algorithms")
    yield repr([getattr(torch._C, f"_get_{name}", lambda: None)() for name in asked])


def _autocast(kind: str) -> object:
    return torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)


def _argument(value: Any, held: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return _literal(value)
    if type(value) not in PLAIN_TENSORS or value.layout is not torch.strided or value.device.type not in KINDS:
        raise _UndescribedError
    flags = (held, value.requires_grad, value.is_inference(), value.is_conj(), value.is_neg())
    return repr((value.dtype, tuple(value.shape), value.stride(), str(value.device), flags))


def _literal(value: Any) -> str:
    if type(value) not in _LITERALS:
        raise _UndescribedError
    return repr(value)


def _elements(tensor: torch.Tensor) -> str:
    """Return a tensor's type, and a digest of its elements."""
    if type(tensor) not in PLAIN_TENSORS or isinstance(tensor, torch._subclasses.FakeTensor):
        raise _UndescribedError
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = hashlib.sha256(plain.reshape(-1).view(torch.uint8).numpy().data).hexdigest()
    return repr((tensor.dtype, tuple(tensor.shape), tensor.stride(), str(tensor.device), data))


def _graph(module: Any) -> Iterator[str]:
    """Yield each node of a module's graph, and of nested graphs."""
    numbers: dict[torch.fx.Node, int] = {}
    for node in module.graph.nodes:
        yield f"{node.op} {_target(module, node)} {_text_of(node.args, numbers)} {_text_of(node.kwargs, numbers)}"
        numbers[node] = len(numbers)


def _target(module: Any, node: torch.fx.Node) -> str:
    if node.op in ("placeholder", "output"):
        return ""
    if node.op == "call_method":
        return str(node.target)
    if node.op == "call_function":
        return _function(node.target)
    if node.op != "get_attr":
        raise _UndescribedError
    found = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    if isinstance(found, torch.fx.GraphModule):
        return f"[{'; '.join(_graph(found))}]"
    if isinstance(found, torch.Tensor):
        return _elements(found)
    raise _UndescribedError


def _text_of(value: Any, numbers: Mapping[torch.fx.Node, int]) -> str:
    """Return the text of an argument of a node."""
    if isinstance(value, torch.fx.Node):
        return f"%{numbers[value]}"
    if isinstance(value, (tuple, list)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return f"{kind}({', '.join(_text_of(item, numbers) for item in value)})"
    if isinstance(value, dict):
        items = (f"{_literal(key)}: {_text_of(item, numbers)}" for key, item in value.items())
        return f"dict({', '.join(items)})"
    if isinstance(value, slice):
        return f"slice{_text_of((value.start, value.stop, value.step), numbers)}"
    return _literal(value)


def _function(target: Callable[..., Any] | str) -> str:
    """Return the module and the name of a function of PyTorch or Python."""
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops.HigherOrderOperator)):
        space = getattr(target, "namespace", None) or str(target).partition(".")[0]
        if space not in _NAMESPACES:
            raise _UndescribedError
        return f"{space} {target}"
    names = [str(getattr(target, name, "")) for name in ("__qualname__", "__name__")]  # PyTorch sets the second one
    module = str(getattr(target, "__module__", "") or "")
    known = module.partition(".")[0] in ("torch", "_operator", "builtins", "math")
    for home in ((sys.modules.get(module),) if known else ()) + _MODULES:
        for name in names:
            if name and _attribute(home, name) is target:
                return f"{getattr(home, '__name__', '')} {name}"
    raise _UndescribedError


def _attribute(home: Any, path: str) -> Any:
    for part in path.split("."):
        home = getattr(home, part, None)
    return home
