"""Memory with constants of plans, by content: compiled graphs of equal weights read one copy on a device.

A tensor lives as long as a compiled graph keeps it; the table has weak references.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import torch

_TENSORS: WeakValueDictionary[tuple[str, str, int], Any] = WeakValueDictionary()
_FILLING = Lock()


class SharedMemory:
    """Shared memory of a device, as one compiled graph asks for it; `memory` keeps the tensors that it got."""

    def __init__(self, device: torch.device, memory: list[torch.Tensor]) -> None:
        self.device = device
        self.memory = memory

    def address(self, digest: str, nbytes: int, fill: Callable[[int], None]) -> int:
        """Return the address of memory with the content of a digest; `fill` writes it where no graph has it yet."""
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
