"""Device of a graph; graphs on several devices stay in PyTorch.

So do graphs on devices without kernels. A plan has one device for all its inputs and results. Compiled graphs of equal
weights share one copy of the constants on a device; a tensor of it lives as long as a compiled graph keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch

from ...ir import UsageError

#: The devices that kernels are made for.
KINDS = ("cpu", "cuda")
#: Constants of compiled graphs by device, digest and bytes; the graphs keep them.
_TENSORS: WeakValueDictionary[tuple[str, str, int], Any] = WeakValueDictionary()
_FILLING = Lock()


def is_number(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is one number on the CPU.

    PyTorch accepts these beside tensors of any device.
    """
    return tensor.dim() == 0 and tensor.device.type == "cpu"


def device_of(values: Sequence[Any]) -> torch.device:
    """Return the device of the first tensor with axes, else the CPU."""
    tensors = (value for value in values if isinstance(value, torch.Tensor))
    return next((tensor.device for tensor in tensors if not is_number(tensor)), torch.device("cpu"))


def device_for(dialect: str) -> torch.device:
    """Return PyTorch's device for a dialect: the GPU, else the CPU."""
    return torch.device("cuda", 0) if dialect == "cuda" and torch.cuda.is_available() else torch.device("cpu")


def check_devices(graph: torch.fx.Graph, device: torch.device) -> None:
    """Check that a graph can run on a device.

    Raises `UsageError` where it reads or returns tensors of another one, or where there are no kernels for it.
    """
    if device.type not in KINDS:
        raise UsageError(f"there are no kernels for device {device}; tensors may lie on {' and '.join(KINDS)}")
    found = dict.fromkeys((device, *_used_devices(graph)))
    if len(found) > 1:
        raise UsageError(
            f"its tensors lie on {' and '.join(map(str, found))}", hint="move the model and its inputs to one device"
        )


def _used_devices(graph: torch.fx.Graph) -> Iterator[torch.device]:
    """Yield the devices of a graph's inputs and results, except for numbers."""
    for node in graph.nodes:
        ends = [node] if node.op == "placeholder" and node.users else []
        for tensor in (end.meta.get("val") for end in (node.all_input_nodes if node.op == "output" else ends)):
            if isinstance(tensor, torch.Tensor) and not is_number(tensor):
                yield tensor.device


class SharedMemory:
    """Shared constants of a device for one compiled graph.

    `memory` keeps the tensors that it got.
    """

    def __init__(self, device: torch.device, memory: list[torch.Tensor]) -> None:
        self.device = device
        self.memory = memory

    def address(self, digest: str, nbytes: int, fill: Callable[[int], None]) -> int:
        """Return the address of memory with the content of a digest.

        `fill` writes it where no graph has it yet.
        """
        key = str(self.device), digest, nbytes
        with _FILLING:
            tensor = _TENSORS.get(key)
            if tensor is None:
                tensor = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
                if self.device.type == "cuda":
                    torch.cuda.current_stream(self.device).synchronize()  # before anything is uploaded to it
                fill(tensor.data_ptr())
                _TENSORS[key] = tensor
        if self.device.type == "cuda":  # other streams than that of its allocation read it
            tensor.record_stream(torch.cuda.current_stream(self.device))
        self.memory.append(tensor)
        return int(tensor.data_ptr())


def shared_bytes() -> int:
    """Return the bytes of the constants that compiled graphs share now."""
    return sum(tensor.nbytes for tensor in list(_TENSORS.values()))
