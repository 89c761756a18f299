"""A backend for `torch.compile`: graphs that Dynamo captures become ours, forward and backward.

Where gradients are wanted, PyTorch's autograd makes two graphs of core operations. Both are read alike: backward
operations decompose, or are the derived adjoints of what their forward operations mean here (`operators.gradients`). A
graph that we cannot read runs in PyTorch, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.attention import SDPBackend, sdpa_kernel

from ...ir import CutsError, UsageError
from .direct import is_direct
from .dynamic import by_shape, is_dynamic
from .frozen import FrozenFunction
from .held import frozen_places, held_inputs, own_numbers
from .load import graph_of_nodes, training_decompositions
from .program import CompileGraph
from .tensors import function_of_tensors


class UncompiledWarning(UserWarning):
    """A captured graph could not be read and runs in PyTorch."""


def dynamo_backend(module: Any, examples: Sequence[Any], compile_graph: CompileGraph, freeze: bool = False) -> Any:
    """Compile a captured module: the entry that `torch.compile` calls. Gradients, where wanted, are PyTorch's graphs,
    compiled alike. With `freeze`, parameters and buffers become constants.

    Raises `UsageError` where gradients of what is frozen are wanted.
    """

    def compile_static(module: Any, arguments: Sequence[Any]) -> Callable[..., Any]:
        held = held_inputs(module, arguments)
        frozen = {n: arguments[n] for n in sorted(held)} if freeze else {}
        _check_frozen(frozen)

        direct: list[Callable[..., Any]] = []

        def compile_part(part: Any, inputs: Sequence[Any]) -> Any:
            try:
                with unset_fake_temporarily():  # constants are numbers here
                    found = _compiled(part, inputs, compile_graph, held, frozen)
                    direct.extend([found] if is_direct(part.graph, arguments) else [])
                    return make_boxed_func(found)
            except CutsError as error:
                warnings.warn(
                    f"a graph of {len(part.graph.nodes)} nodes runs in PyTorch: {error}",
                    UncompiledWarning,
                    stacklevel=2,
                )
                return make_boxed_func(part.forward)

        with sdpa_kernel(_attention_kernels(arguments)), _resizing_whole():
            backend = aot_autograd(fw_compiler=compile_part, decompositions=training_decompositions())
            compiled: Callable[..., Any] = backend(module, arguments)
            return direct[0] if direct else compiled

    return by_shape(module, compile_static) if any(map(is_dynamic, examples)) else compile_static(module, examples)


def _check_frozen(frozen: Mapping[int, Any]) -> None:
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in frozen.values()):
        raise UsageError(
            "option 'freeze': gradients of the parameters are wanted",
            hint="call the model under torch.no_grad(), or leave 'freeze' out to train it",
        )


@contextmanager
def _resizing_whole() -> Iterator[None]:
    """Keep PyTorch from writing resizing as indexing, whose gradient would be a scatter; its kernels are set aside
    while it traces.
    """
    aten = torch.ops.aten
    packets = (
        aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d,
        aten.upsample_nearest2d,
    )  # fmt: skip
    overloads = [o for packet in packets for o in (packet.vec, packet.default)]
    keys = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
    taken = [(o, key, o.py_kernels.pop(key)) for o in overloads for key in keys if key in o.py_kernels]
    for overload in overloads:
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, key, kernel in taken:
            overload.py_kernels[key] = kernel
            overload._dispatch_cache.clear()


def _attention_kernels(arguments: Sequence[Any]) -> list[SDPBackend]:
    """Return how PyTorch may write attention: whole, or as contractions and a softmax where gradients are wanted."""
    trained = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in arguments)
    whole = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]  # the second for f32 on a GPU
    return [SDPBackend.MATH] if trained else [*whole, SDPBackend.MATH]


def _compiled(
    part: Any,
    inputs: Sequence[Any],
    compile_graph: CompileGraph,
    held: frozenset[int],
    frozen: Mapping[int, torch.Tensor],
) -> Callable[..., list[Any]]:
    """Compile a graph that autograd made; `held` and `frozen` are inputs of the captured module, by number."""
    device = next((value.device for value in inputs if isinstance(value, torch.Tensor)), torch.device("cpu"))
    own = own_numbers(part.graph)  # what is kept for a backward graph lies as we make it
    places = {place for place, number in own.items() if number in held}

    def compile_with(constants: Mapping[int, torch.Tensor]) -> Callable[..., list[Any]]:
        return function_of_tensors(graph_of_nodes(part.graph, constants, own), device, compile_graph, places)

    constants = frozen_places(part.graph, frozen)
    return FrozenFunction(compile_with, constants) if constants else compile_with({})
