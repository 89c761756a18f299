"""Compiled graphs as functions of PyTorch's tensors.

They run in PyTorch's memory where a plan can (`CompiledFunction`), else through arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from ...ir import ObjectCache, dtype_of_numpy
from .captured_graph import CapturedGraph, GraphSignature
from .compiled_function import CompiledFunction
from .import_context import BITS, TORCH_TYPES
from .program import ArrayFunction, Choice, CompileGraph
from .result_memory import Memory
from .results import MemoryForm, form_of_memory, gather_results, result_views, view_of

#: A compiled graph as a function of its inputs, in order.
TensorFunction = Callable[..., list[Any]]


def function_of_tensors(
    captured: CapturedGraph, device: torch.device, compile_graph: CompileGraph, held: Collection[int] = ()
) -> TensorFunction:
    """Compile a captured graph; return the function of its inputs.

    `held` are the numbers of parameters and buffers.
    """
    return function_of_signature(captured.signature, device, compile_graph(captured, device), held)


def function_of_signature(
    ends: GraphSignature, device: torch.device, compiled: ArrayFunction | Choice, held: Collection[int] = ()
) -> TensorFunction:
    """Return the function of a captured graph's inputs for a compiled graph."""
    choose = getattr(compiled, "choose", None)
    if choose is None:
        return _through_arrays(ends, compiled)  # type: ignore[arg-type]

    def function_of(chosen: Any) -> TensorFunction:
        if hasattr(chosen, "open"):
            return CompiledFunction(ends, device, chosen, held)
        return _through_arrays(ends, chosen)

    return _ChosenFunction(choose, function_of)


@frozen(eq=False)
class _ChosenFunction:
    """Function of the compiled form that PyTorch's settings choose at each call."""

    choose: Callable[[], Any]
    function_of: Callable[[Any], TensorFunction]
    functions: ObjectCache[TensorFunction] = field(factory=ObjectCache)

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the results."""
        return self._function()(*arguments)

    def consume(self, arguments: list[Any]) -> list[Any]:
        """Return the results; arguments are released while the function runs."""
        return call_boxed(self._function(), arguments)

    def _function(self) -> TensorFunction:
        chosen = self.choose()
        return self.functions.find(chosen, lambda: self.function_of(chosen))


def call_boxed(function: TensorFunction, arguments: list[Any]) -> list[Any]:
    """Call a function that may release its arguments while it runs."""
    consume: Callable[[list[Any]], list[Any]] | None = getattr(function, "consume", None)
    return function(*arguments) if consume is None else consume(arguments)


def _through_arrays(ends: GraphSignature, run: ArrayFunction) -> TensorFunction:
    """Return a function of tensors on the CPU, which are copied to and from a plan's memory."""

    forms = tuple(form_of_memory(memory, memory.nbytes) for memory in ends.memory.memories)
    results = result_views(ends, forms)

    def call(*arguments: Any) -> list[Any]:
        seeds = (
            torch.randint(1 << 32, (len(ends.seeds),)).numpy().astype(np.uint32)
        )  # PyTorch's generator, so that its seed counts
        named = {name: value for name, value in zip(ends.inputs, arguments, strict=True) if name is not None}
        named |= {name: named[name].permute(order) for name, order in ends.orders.items() if name in named}
        arrays = {name: _array(value) for name, value in named.items()}
        arrays |= {name: np.asarray(seed) for name, seed in zip(ends.seeds, seeds, strict=True)}
        found = run(arrays)
        memories = [_memory(memory, form, found) for memory, form in zip(ends.memory.memories, forms, strict=True)]
        return gather_results(results, memories, arguments)

    return call


def _memory(memory: Memory, form: MemoryForm, found: Mapping[str, Any]) -> torch.Tensor:
    """Return a memory, filled with outputs; an output that is all of it, uncopied."""
    shape, strides, dtype = form
    tensors = [(tensor_of_array(found[part.name]), part) for part in memory.parts]
    only: torch.Tensor
    only, part = tensors[0]
    if len(tensors) == 1 and shape == part.form.shape:
        only = only.permute([part.order.index(axis) for axis in range(len(part.order))])
        if only.stride() == strides and only.dtype is dtype:
            return only
    made = torch.empty_strided(shape, strides, dtype=dtype)
    for value, part in tensors:
        view_of(made, part.form).permute(part.order).copy_(value)
    return made


def tensor_of_array(value: Any) -> torch.Tensor:
    """Return an array as a tensor, without a copy."""
    if value.dtype.isbuiltin != 1 and (dtype := dtype_of_numpy(value.dtype)) is not None:
        kind = TORCH_TYPES[dtype]
        return torch.as_tensor(value.view(f"u{value.dtype.itemsize}")).view(kind)
    return torch.as_tensor(value)


def _array(value: Any) -> Any:
    """Return a tensor as an array, without a copy where it is contiguous."""
    tensor = value.detach().contiguous()
    tensor = tensor.view(BITS.get(tensor.dtype, tensor.dtype))
    return tensor.resolve_neg().numpy()
