"""What Dynamo and PyTorch's dispatcher make of recurrent layers while they trace for this backend.

By default Dynamo breaks its graph at `nn.RNN`, `nn.GRU` and `nn.LSTM`, and says nothing of it; and where it does not,
PyTorch's dispatcher takes their operations apart, into routines of the device or step by step, before anybody sees
them. Both ask us first: for graphs of this backend Dynamo goes on, and a layer becomes an operator of ours
(`layers`). Graphs of other backends are traced as ever.
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

from ..captured import UncompiledWarning
from .layers import PACKED, RECURRENT

_COMPOSITE = DispatchKey.CompositeImplicitAutograd
#: How PyTorch wraps the function that is given to `torch.compile`, outermost first.
_WRAPPED = ("_torchdynamo_orig_backend", "compiler_fn", "func")


@define
class Met:
    """Whether a captured module has recurrent layers."""

    layers: bool = False


_TRACED: ContextVar[Met | None] = ContextVar("_TRACED", default=None)
_BACKENDS: list[Callable[..., Any]] = []


class _ForOurs(int):
    """A setting of Dynamo that is true while it traces for one of our backends, and false as its default otherwise: so
    it is where a function has a packed sequence, at whose lengths, which are values, Dynamo would break later.
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
        return repr(False)  # digests of settings, by which others keep what they compiled, are what they were

    def __reduce__(self) -> tuple[type[bool], tuple[bool]]:
        return bool, (False,)


def allow_layers(backend: Callable[..., Any]) -> None:
    """Let Dynamo capture recurrent layers in graphs that `backend` compiles.

    It is a default, so what somebody sets `torch._dynamo.config.allow_rnn` to holds.
    """
    _BACKENDS.append(backend)
    entry = getattr(torch._dynamo.config, "_config", {}).get("allow_rnn")
    if entry is not None and entry.default is False:
        entry.default = _ForOurs()
        _ask_first()


@contextmanager
def layers_apart() -> Iterator[Met]:
    """Have recurrent layers taken apart into ours, and note whether there are any."""
    _ask_first()
    met = Met()
    token = _TRACED.set(met)
    try:
        yield met
    finally:
        _TRACED.reset(token)


def _is_ours() -> bool:
    """Whether Dynamo traces for one of our backends now."""
    try:
        translator = InstructionTranslator.current_tx()
    except AttributeError:  # it traces nothing
        return False
    function = getattr(getattr(translator, "output", None), "compiler_fn", None)
    while function is not None and not any(function is backend for backend in _BACKENDS):
        function = next((found for name in _WRAPPED if (found := getattr(function, name, None))), None)
    return function is not None


@cache
def _ask_first() -> None:
    """Put a choice in the place of PyTorch's own ways of taking recurrent layers apart."""
    for overload in (*RECURRENT, *PACKED):
        overload.py_kernels.setdefault(_COMPOSITE, partial(overload._op_dk, _COMPOSITE))
        for key in {DispatchKey.Autograd, _COMPOSITE} & set(overload.py_kernels):
            overload.py_kernels[key] = partial(_choose, overload.py_kernels[key], overload)
        overload._dispatch_cache.clear()


def _choose(theirs: Callable[..., Any], overload: torch._ops.OpOverload, *arguments: Any, **named: Any) -> Any:
    """Take a layer apart: while autograd traces for us, as we do; while Dynamo does, which asks for nothing but what
    results are like, not at all, for PyTorch's way is a node for each step; and otherwise as PyTorch does.
    """
    ours, met = RECURRENT.get(overload), _TRACED.get()
    if not (ours and met) and not _is_ours():
        return theirs(*arguments, **named)
    if ours is None:
        raise DataDependentOutputException(overload)  # Dynamo breaks its graph, and PyTorch runs the layer
    given = (*arguments, *(named[each.name] for each in overload._schema.arguments[len(arguments) :]))
    if met is None:
        return ours.like(*given)
    met.layers = True
    return ours(*given)
