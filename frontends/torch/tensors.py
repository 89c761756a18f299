"""Plans as functions of PyTorch's tensors, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...ir import DType, dtype_of_numpy
from .captured import Captured

#: Compiles a graph for the device that tensors live on ("cpu" or "cuda") into a function of arrays by name.
CompileGraph = Callable[[Captured, str], Callable[[Mapping[str, Any]], Mapping[str, Any]]]


def function_of_tensors(
    captured: Captured, device: torch.device, compile_graph: CompileGraph
) -> Callable[..., list[Any]]:
    """Compile a captured graph, and return the function of its inputs, in order, that runs it."""
    run = compile_graph(captured, device.type)

    def call(*arguments: Any) -> list[Any]:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # we launch on a stream of our own
        seeds = (
            torch.randint(1 << 32, (len(captured.seeds),)).numpy().astype(np.uint32)
        )  # PyTorch's generator, so that its seed counts
        arrays = {
            name: _array(value) for name, value in zip(captured.inputs, arguments, strict=True) if name is not None
        }
        arrays |= {name: np.asarray(seed) for name, seed in zip(captured.seeds, seeds, strict=True)}
        found = run(arrays)
        tensors = {name: _tensor(found[name], device) for name in captured.graph.outputs}
        return [tensors[name] if isinstance(name, str) else name for name in captured.results]

    return call


def _tensor(value: Any, device: torch.device) -> Any:
    """Return a result as a tensor; what lies in a plan's memory on a GPU is copied, as the next run writes over it."""
    if dtype_of_numpy(value.dtype) is DType.BF16:  # known to PyTorch by other names than to NumPy: it goes as bits
        tensor = torch.as_tensor(value.view(np.int16), device=device).view(torch.bfloat16)
    else:
        tensor = torch.as_tensor(value, device=device)
    return tensor.clone() if device.type == "cuda" else tensor


def _array(value: Any) -> Any:
    """Return a tensor as an array of its device, without a copy where it is contiguous."""
    tensor = value.detach().contiguous()
    tensor = tensor.view(torch.uint16) if tensor.dtype is torch.bfloat16 else tensor
    return tensor if tensor.is_cuda else tensor.numpy()
