"""A compiled graph as a function of tensors, which it reads and writes where they lie.

A call launches the plan's kernels on PyTorch's current stream, and waits for nothing on a GPU. Outputs are new tensors
of PyTorch's allocator, which no later call writes to. Inputs are read in place where they are dense and begin at a
multiple of 16 bytes; others are copied first. What a plan keeps between calls (constants, memory between kernels) is
PyTorch's too. On a stream that somebody records, as `torch.cuda.graph` does, a call gets memory between kernels of its
own, so that the recording may be replayed beside other calls.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock
from typing import Any

import torch
from attrs import frozen

from ...ir import BackendError, UsageError, quote
from .captured import Ends
from .devices import SharedMemory, is_number
from .program import Running, TensorProgram
from .reader import TORCH_TYPES
from .results import ALIGNMENT, Give, Made, give, givers, made_of
from .settings import current_stream, is_recorded, same_pointers


@frozen
class _Expected:
    """What an input was compiled for, and its place among the arguments."""

    name: str
    at: int
    dtype: torch.dtype
    shape: torch.Size
    device: torch.device
    order: tuple[int, ...] | None = None

    def of(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Return the input among the arguments, with its axes in the order that the graph has.

        Raises `UsageError` where it is not what the graph was compiled for.
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
class _Opened:
    """A program with memory of its own, and what it is given: held inputs, and others; None stands for a seed."""

    running: Running
    memory: tuple[torch.Tensor, ...]
    held: tuple[_Expected, ...]
    moving: tuple[_Expected | None, ...]
    made: Made
    results: tuple[int | Give, ...]
    streams: set[int]


@frozen(eq=False)
class _Known:
    """Where the held inputs of an opened program lay at the last call: `pointers` at `indices` of the arguments."""

    opened: _Opened
    pointers: list[int]
    indices: list[int]
    fixed: tuple[int, ...]

    def still(self, arguments: Sequence[Any]) -> bool:
        """Whether they lie there now."""
        return same_pointers(arguments, self.pointers, self.indices)


class Door:
    """A program as a function of the inputs of a captured graph, in order, on one device.

    `held` are the numbers of inputs that a model holds (parameters, buffers). Any thread may call it.
    """

    def __init__(self, ends: Ends, device: torch.device, program: TensorProgram, held: Collection[int] = ()) -> None:
        self.ends, self.device, self.program = ends, device, program
        self._held = frozenset(held)
        self._known: _Known | None = None
        self._opening = Lock()

    def __call__(self, *arguments: Any) -> list[Any]:
        """Launch the graph on the current stream, and return its results.

        Raises `UsageError` for a tensor of another type, shape or device; `BackendError` where the first call is one
        that is recorded.
        """
        known = self._known
        if known is None or not known.still(arguments):
            known = self._meet(arguments)
        opened = known.opened
        seeds = iter(self._seeds())
        given = [next(seeds) if item is None else _readable(item.of(arguments)) for item in opened.moving]
        memories, blocks = opened.made.new(self.device)
        self._launch(known, [tensor.data_ptr() for tensor in (*given, *blocks)])
        if opened.made.copied:
            held = (item.of(arguments).detach() for item in opened.held)
            opened.made.finish(memories, (*opened.memory, *held, *given, *blocks))
        return give(opened.results, memories, arguments)

    def _launch(self, known: _Known, addresses: Sequence[int]) -> None:
        opened, stream = known.opened, current_stream(self.device)
        if is_recorded(self.device):
            scratch = torch.empty_like(opened.memory[1])
            fixed = opened.running.fixed([known.pointers[n] for n in known.indices], scratch.data_ptr())
            opened.running.launch_apart(fixed, addresses, stream)
            return
        if stream not in opened.streams:
            opened.streams.add(stream)
            for tensor in opened.memory if self.device.type == "cuda" else ():
                tensor.record_stream(torch.cuda.current_stream(self.device))
        opened.running.launch(known.fixed, addresses, stream)

    def _seeds(self) -> Sequence[torch.Tensor]:
        """Return new random numbers of 32 bits, the lower half of an integer each; PyTorch's generator of the device
        draws them, so that its seed counts.
        """
        count = len(self.ends.seeds)
        return torch.tensor_split(torch.randint(1 << 32, (count,), device=self.device), count) if count else ()

    # ---- what is done once

    def _meet(self, arguments: Sequence[Any]) -> _Known:
        """Note where held inputs lie; open the program where that is not done, or one cannot be read in place now."""
        with self._opening:
            opened = self._known.opened if self._known else self._open(arguments)
            if not all(_is_readable(item.of(arguments)) for item in opened.held):
                opened = self._open(arguments)
            places = {item.at: item.of(arguments).data_ptr() for item in opened.held}
            pointers = [places.get(n, 0) for n in range(len(arguments))]
            self._known = _Known(opened, pointers, list(places), opened.running.fixed(tuple(places.values())))
            return self._known

    def _open(self, arguments: Sequence[Any]) -> _Opened:
        """Open the program; inputs are held that are now where they can be read in place."""
        if is_recorded(self.device):
            raise BackendError(
                "a compiled graph is opened at its first call, which cannot be recorded",
                hint="call the model once before torch.cuda.graph",
            )
        places = {name: at for at, name in enumerate(self.ends.inputs) if name is not None}
        expected = {name: self._expected(name, at) for name, at in places.items()}
        there = [name for name, at in places.items() if arguments[at].device == self.device]
        held = [n for n in there if places[n] in self._held and _is_readable(expected[n].of(arguments))]
        memory: list[torch.Tensor] = []
        with torch.inference_mode(False):
            running = self.program.open(
                held, lambda nbytes: self._allocate(memory, nbytes), SharedMemory(self.device, memory).address
            )
        layout = running.layout
        made = made_of(layout, self.ends.memory)
        return _Opened(
            running,
            tuple(memory),
            tuple(expected[name] for name in layout.held),
            tuple(expected.get(name) for name in layout.moving),
            made,
            givers(self.ends, made.memories),
            {current_stream(self.device)},
        )

    def _allocate(self, memory: list[torch.Tensor], nbytes: int) -> int:
        tensor = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # before anything is uploaded to it
        memory.append(tensor)
        return tensor.data_ptr()

    def _expected(self, name: str, at: int) -> _Expected:
        type_ = self.ends.types[name]
        order = self.ends.orders.get(name)
        return _Expected(name, at, TORCH_TYPES[type_.dtype], torch.Size(type_.shape), self.device, order)


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether kernels can read a tensor where it lies."""
    return tensor.is_contiguous() and tensor.data_ptr() % ALIGNMENT == 0


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor, or a copy of it that kernels can read."""
    return tensor if _is_readable(tensor) else tensor.detach().clone(memory_format=torch.contiguous_format)
