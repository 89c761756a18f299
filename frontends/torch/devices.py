"""On which device of PyTorch a graph runs; a graph that is on several, or on one that has no kernels, stays in PyTorch.

A plan has one device: all that it reads and returns lies there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...ir import UsageError

#: The devices that kernels are made for.
KINDS = ("cpu", "cuda")


def is_number(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one number on the CPU, which PyTorch takes along with tensors of any device."""
    return tensor.dim() == 0 and tensor.device.type == "cpu"


def device_of(values: Sequence[Any]) -> torch.device:
    """Return the device of the first tensor among some values that is more than a number, else the CPU."""
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return next((tensor.device for tensor in tensors if not is_number(tensor)), torch.device("cpu"))


def check_devices(graph: torch.fx.Graph, device: torch.device) -> None:
    """Raise `UsageError` where a graph that is to run on a device reads or returns tensors of another one, or where
    there are no kernels for it.
    """
    if device.type not in KINDS:
        raise UsageError(f"there are no kernels for device {device}; tensors may lie on {' and '.join(KINDS)}")
    found = dict.fromkeys((device, *_touched(graph)))
    if len(found) > 1:
        raise UsageError(
            f"its tensors lie on {' and '.join(map(str, found))}", hint="move the model and its inputs to one device"
        )


def _touched(graph: torch.fx.Graph) -> Iterator[torch.device]:
    """Yield where the tensors are that a graph reads from outside and returns, but for numbers."""
    for node in graph.nodes:
        ends = [node] if node.op == "placeholder" and node.users else []
        for tensor in (end.meta.get("val") for end in (node.all_input_nodes if node.op == "output" else ends)):
            if isinstance(tensor, torch.Tensor) and not is_number(tensor):
                yield tensor.device
