"""Capture of recurrent layers by Dynamo and PyTorch's dispatcher.

By default Dynamo breaks its graph at `nn.RNN`, `nn.GRU` and `nn.LSTM` without a message. Otherwise PyTorch's dispatcher
decomposes their operations into routines of the device, or step by step. Both call us first: for graphs of this backend
Dynamo continues, and a layer becomes an operator of ours (`recurrent_layers`); others are traced as usual.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from attrs import define
from torch._C import DispatchKey
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn.utils.rnn import PackedSequence

from ..captured_graph import UncompiledWarning
from .recurrent_layers import PACKED_OPERATIONS, RECURRENT

_COMPOSITE = DispatchKey.CompositeImplicitAutograd
#: Attributes by which PyTorch wraps the backend of `torch.compile`, outermost first.
_WRAPPER_ATTRIBUTES = ("_torchdynamo_orig_backend", "compiler_fn", "func")


@define
class LayerRecord:
    """Record of recurrent layers in a captured module."""

    layers: bool = False


_CURRENT_RECORD: ContextVar[LayerRecord | None] = ContextVar("_TRACED", default=None)
_BACKENDS: list[Callable[..., Any]] = []


class _ForOurs(int):
    """Setting of Dynamo that is true while it traces for one of our backends.

    It is false, as the default, otherwise. It is also false where a function has a packed sequence, at whose lengths,
    which are values, Dynamo would break later.
    """

    def __bool__(self) -> bool:
        if not _is_ours():
            return False
        values = getattr(InstructionTranslator.current_tx(), "f_locals", {}).values()
        packed = any(isinstance(value, PackedSequence) for value in values)
        if packed:
            message = "a recurrent layer runs in PyTorch: how long packed sequences are is not known to a graph"
            warnings.warn(message, UncompiledWarning, stacklevel=2)
        return not packed

    def __repr__(self) -> str:
        return repr(False)  # digests of settings, the cache keys of other backends, stay unchanged

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (False,)


def allow_layers(backend: Callable[..., Any]) -> None:
    """Let Dynamo capture recurrent layers in graphs of `backend`.

    It sets a default; an explicit `torch._dynamo.config.allow_rnn` takes precedence.
    """
    _BACKENDS.append(backend)
    entry = getattr(torch._dynamo.config, "_config", {}).get("allow_rnn")
    if entry is not None and entry.default is False:
        entry.default = _ForOurs()
        _install_dispatch()


@contextmanager
def decompose_layers() -> Iterator[LayerRecord]:
    """Decompose recurrent layers into ours, and record their presence."""
    _install_dispatch()
    met = LayerRecord()
    token = _CURRENT_RECORD.set(met)
    try:
        yield met
    finally:
        _CURRENT_RECORD.reset(token)


def _is_ours() -> bool:
    """Return whether Dynamo traces for one of our backends now."""
    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:  # it traces nothing
        return False
    function = getattr(getattr(translator, "output", None), "compiler_fn", None)
    while function is not None and not any(function is backend for backend in _BACKENDS):
        function = next((found for name in _WRAPPER_ATTRIBUTES if (found := getattr(function, name, None))), None)
    return function is not None


@cache
def _install_dispatch() -> None:
    """Wrap PyTorch's decompositions of recurrent layers in a dispatch."""
    for overload in (*RECURRENT, *PACKED_OPERATIONS):
        overload.py_kernels.setdefault(_COMPOSITE, partial(overload._op_dk, _COMPOSITE))
        for key in {DispatchKey.Autograd, _COMPOSITE} & set(overload.py_kernels):
            overload.py_kernels[key] = partial(_choose, overload.py_kernels[key], overload)
        overload._dispatch_cache.clear()


def _choose(theirs: Callable[..., Any], overload: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """Decompose a layer by the tracer.

    While autograd traces for us, the layer becomes ours. While Dynamo traces, which needs the metadata of results only,
    it stays whole, for PyTorch's decomposition is a node for each step. Otherwise PyTorch decomposes it.
    """
    ours, met = RECURRENT.get(overload), _CURRENT_RECORD.get()
    if not (ours and met) and not _is_ours():
        return theirs(*arguments, **named)
    if ours is None:
        raise DataDependentOutputException(overload)  # Dynamo breaks its graph, and PyTorch runs the layer
    given = (*arguments, *(named[each.name] for each in overload._schema.arguments[len(arguments) :]))
    if met is None:
        return ours.like(*given)
    met.layers = True
    return ours(*given)
