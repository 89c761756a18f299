"""PyTorch's settings at the moment of a call, by its cheapest queries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .results import ALIGNMENT


def matmul_precision() -> str:
    """Return PyTorch's precision of f32 products: "highest", "high" or "medium"."""
    return str(torch.get_float32_matmul_precision())


def current_stream(device: torch.device) -> int:
    """Return the handle of a device's current stream; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if quick is None or device.index is None:
        return int(torch.cuda.current_stream(device).cuda_stream)
    return quick(device.index)


def is_capturing(device: torch.device) -> bool:
    """Return whether a CUDA graph captures a device's current stream."""
    if device.type != "cuda":
        return False
    if device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


_EQUAL: Any = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)  # PyTorch's own CUDA graphs ask it


def same_pointers(values: Sequence[Any], pointers: list[int], indices: list[int]) -> bool:
    """Return whether the tensors at `indices` lie at the addresses `pointers`."""
    if _EQUAL is not None:
        return bool(_EQUAL(list(values), pointers, indices))
    return all(values[n].data_ptr() == pointers[n] for n in indices)


def is_readable(tensor: torch.Tensor) -> bool:
    """Return whether kernels can read a tensor in place."""
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0 and not tensor.is_neg()


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it that kernels can read."""
    if is_readable(tensor):
        return tensor
    return tensor.detach().resolve_neg().clone(memory_format=torch.contiguous_format)
