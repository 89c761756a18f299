"""What PyTorch says at the moment of a call, asked in the cheapest way that this version of it has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def matmul_precision() -> str:
    """Return what PyTorch allows in products of f32: "highest", "high" or "medium"."""
    return str(torch.get_float32_matmul_precision())


def current_stream(device: torch.device) -> int:
    """Return the handle of the current stream of a device; 0 on the CPU."""
    if device.type != "cuda":
        return 0
    quick: Callable[[int], int] | None = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    if quick is None or device.index is None:
        return int(torch.cuda.current_stream(device).cuda_stream)
    return quick(device.index)


def is_recorded(device: torch.device) -> bool:
    """Whether somebody records the current stream of a device as a CUDA graph."""
    if device.type != "cuda":
        return False
    if device.index == torch.cuda.current_device():
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


_EQUAL: Any = getattr(torch._C, "_tensors_data_ptrs_at_indices_equal", None)  # PyTorch's own CUDA graphs ask it


def same_pointers(values: Sequence[Any], pointers: list[int], indices: list[int]) -> bool:
    """Whether the tensors at some indices lie at the addresses that `pointers` has there."""
    if _EQUAL is not None:
        return bool(_EQUAL(list(values), pointers, indices))
    return all(values[n].data_ptr() == pointers[n] for n in indices)
