"""Program opened in PyTorch's memory: expected inputs, outputs, addresses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import field, frozen

from ...ir import UsageError, quote
from .devices import is_number
from .program import Running
from .results import OutputAllocation, ResultFunction
from .settings import same_pointers


@frozen
class ExpectedInput:
    """Input type that a graph is compiled for, and its argument number."""

    name: str
    at: int
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    order: tuple[int, ...] | None = None

    def replace(self, arguments: Sequence[Any], tensor: torch.Tensor) -> None:
        """Copy new elements to the argument, unless they were written there."""
        argument: torch.Tensor = arguments[self.at]
        if argument.data_ptr() != tensor.data_ptr():
            (argument if self.order is None else argument.permute(self.order)).copy_(tensor)

    def of(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Return the input among the arguments, its axes in the graph's order.

        Raises `UsageError` where it does not fit the compiled graph.
        """
        tensor: torch.Tensor = arguments[self.at]
        if tensor.device != self.device and is_number(tensor):
            tensor = tensor.to(self.device)
        if self.order is not None and tensor.dim() == len(self.order):
            tensor = tensor.permute(self.order)
        if tensor.dtype is not self.dtype or tensor.shape != self.shape or tensor.device != self.device:
            raise UsageError(
                f"input {quote(self.name)}: expected {self.dtype}{list(self.shape)} on {self.device}, "
                f"found {tensor.dtype}{list(tensor.shape)} on {tensor.device}",
                hint="move the model and its inputs to one device, and compile again",
            )
        return tensor


@frozen(eq=False)
class OpenProgram:
    """Program with its memory, held inputs and others.

    None stands for a seed. Without a `scratch`, each call allocates it. A program launched in parts has the numbers of
    `returned` arguments, which results show. Inputs `updated` are overwritten; `copied_back` are those of them that
    move, by their position.
    """

    running: Running
    memory: tuple[torch.Tensor, ...]
    scratch: torch.Tensor | None
    held: tuple[ExpectedInput, ...]
    moving: tuple[ExpectedInput | None, ...]
    made: OutputAllocation
    results: tuple[int | ResultFunction, ...]
    streams: set[int]
    updated: tuple[int, ...] = ()
    copied_back: tuple[tuple[int, ExpectedInput], ...] = ()
    returned: frozenset[int] | None = None


@frozen(eq=False)
class HeldAddresses:
    """Addresses of the held inputs at the last call.

    These are `pointers` at `indices` of the arguments.
    """

    opened: OpenProgram
    pointers: list[int]
    indices: list[int]
    recent: dict[int, tuple[int, ...]] = field(factory=dict)

    def fixed_addresses(self, scratch: int) -> tuple[int, ...]:
        """Return the addresses of blocks that rarely move.

        It is the same object for the same scratch block.
        """
        found = self.recent.get(scratch)
        if found is None:
            found = self.opened.running.fixed_addresses([self.pointers[n] for n in self.indices], scratch)
            self.recent.clear()
            self.recent[scratch] = found
        return found

    def matches(self, arguments: Sequence[Any]) -> bool:
        """Return whether the inputs have these addresses."""
        return same_pointers(arguments, self.pointers, self.indices)
