"""Compiled graph as a function of tensors, read and written in place.

A call launches the plan's kernels on PyTorch's current stream, and does not synchronise with a GPU. Outputs are new
tensors of PyTorch's allocator, which no later call writes to. Inputs are read in place where they are dense and begin
at a multiple of 16 bytes; others are copied first. All memory is PyTorch's: constants are kept between calls, and
scratch memory on the CPU, or of few bytes. Large scratch memory on a GPU belongs to one call, so that the graphs of a
training step share it. A backward graph may be launched in parts: between them saved tensors and intermediates are
released, and outputs are allocated. On a captured stream, as of `torch.cuda.graph`, every call gets its own memory, so
that the CUDA graph may be replayed concurrently with other calls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from threading import Lock
from typing import Any

import torch

from ...ir import BackendError
from .captured_graph import GraphSignature
from .devices import SharedMemory
from .import_context import TORCH_TYPES
from .open_program import ExpectedInput, HeldAddresses, OpenProgram
from .program import Running, TensorProgram
from .results import gather_results, output_allocation, result_views
from .settings import current_stream, is_capturing, is_readable, readable

#: Most bytes of scratch memory that a graph keeps between calls, by device. On a GPU moved memory costs microseconds a
#: kernel; on the CPU new memory costs a page fault for each page.
MAX_KEPT_SCRATCH_BYTES: Mapping[str, float] = {"cuda": 32 << 20, "cpu": math.inf}


class CompiledFunction:
    """Compiled program as a function of a captured graph's inputs.

    It runs on one device. `held` are the numbers of parameters and buffers of the model. It is thread-safe.
    """

    def __init__(
        self, ends: GraphSignature, device: torch.device, program: TensorProgram, held: Collection[int] = ()
    ) -> None:
        self.ends, self.device, self.program = ends, device, program
        self._held = frozenset(held)
        self._addresses: HeldAddresses | None = None
        self._opening = Lock()

    def __call__(self, *arguments: Any) -> list[Any]:
        """Launch the graph on the current stream, and return its results.

        Raises `UsageError` for a tensor of another type, shape or device; `BackendError` where the first call is
        captured.
        """
        return self._call(list(arguments), False)

    def consume(self, arguments: list[Any]) -> list[Any]:
        """Launch the graph, release arguments while it runs, and return its results."""
        return self._call(arguments, True)

    def _call(self, arguments: list[Any], releases: bool) -> list[Any]:
        known = self._addresses
        if known is None or not known.matches(arguments):
            known = self._record_addresses(arguments, releases)
        opened = known.opened
        seeds = iter(self._seeds())
        given = [next(seeds) if item is None else readable(item.of(arguments)) for item in opened.moving]
        scratch, capturing = opened.scratch, is_capturing(self.device)
        if scratch is None or capturing:  # freed memory is used again in the order of the stream
            scratch = self._new_scratch(opened.running)
        if releases and opened.returned is not None:
            memories = self._launch_parts(known, opened.returned, scratch, capturing, arguments, given)
            return gather_results(opened.results, memories, arguments)
        memories, blocks = opened.made.new(self.device)
        self._launch(known, scratch, capturing, [tensor.data_ptr() for tensor in (*given, *blocks)])
        if opened.made.copied:
            constants, *shared = opened.memory
            held = (item.of(arguments).detach() for item in opened.held)
            opened.made.copy_outputs(memories, (constants, scratch, *shared, *held, *given, *blocks))
        if opened.updated:
            _finish_updates(opened, arguments, given)
        return gather_results(opened.results, memories, arguments)

    def _launch_parts(
        self,
        known: HeldAddresses,
        returned: Collection[int],
        scratch: torch.Tensor,
        capturing: bool,
        arguments: list[Any],
        given: list[Any],
    ) -> list[Any]:
        """Launch part by part: memory is allocated ahead of its first, released after its last part.

        Arguments of the numbers `returned` stay."""
        opened = known.opened
        memories, blocks = opened.made.empty()
        for number, part in enumerate(opened.running.parts):
            for block in part.allocated:
                opened.made.allocate(block, memories, blocks, self.device)
            addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (*given, *blocks)]
            self._launch(known, scratch, capturing, addresses, number)
            for place in part.finished:
                blocks[place] = None
            for place in part.released:
                given[place], item = None, opened.moving[place]
                if item is not None and item.at not in returned:
                    arguments[item.at] = None
        return memories

    def _launch(
        self,
        held_addresses: HeldAddresses,
        scratch: torch.Tensor,
        capturing: bool,
        addresses: Sequence[int],
        part: int | None = None,
    ) -> None:
        """Launch a part, or all of them."""
        opened, stream = held_addresses.opened, current_stream(self.device)
        fixed = held_addresses.fixed_addresses(scratch.data_ptr())
        if not capturing and stream not in opened.streams:
            opened.streams.add(stream)
            kept = (*opened.memory, *(() if opened.scratch is None else (opened.scratch,)))
            for tensor in kept if self.device.type == "cuda" else ():
                tensor.record_stream(torch.cuda.current_stream(self.device))
        opened.running.launch(fixed, addresses, stream, part)

    def _seeds(self) -> Sequence[torch.Tensor]:
        """Return new random numbers of 32 bits, the lower half of an integer each, from PyTorch's generator."""
        count = len(self.ends.seeds)
        return torch.tensor_split(torch.randint(1 << 32, (count,), device=self.device), count) if count else ()

    # ---- setup

    def _record_addresses(self, arguments: Sequence[Any], releases: bool) -> HeldAddresses:
        """Record the addresses of held inputs; open the program anew where one cannot be read in place."""
        with self._opening:
            opened = self._addresses.opened if self._addresses else self._open(arguments, releases)
            if not all(is_readable(item.of(arguments)) for item in opened.held):
                opened = self._open(arguments, releases)
            places = {item.at: item.of(arguments).data_ptr() for item in opened.held}
            pointers = [places.get(n, 0) for n in range(len(arguments))]
            self._addresses = HeldAddresses(opened, pointers, list(places))
            return self._addresses

    def _open(self, arguments: Sequence[Any], releases: bool) -> OpenProgram:
        """Open the program; inputs are held that can be read in place.

        Launches are divided where callers release arguments."""
        if is_capturing(self.device):
            raise BackendError(
                "a compiled graph is opened at its first call, which cannot be recorded",
                hint="call the model once before torch.cuda.graph",
            )
        places = {name: at for at, name in enumerate(self.ends.inputs) if name is not None}
        expected = {name: self._expected_input(name, at) for name, at in places.items()}
        there = [name for name, at in places.items() if arguments[at].device == self.device]
        held = [n for n in there if places[n] in self._held and is_readable(expected[n].of(arguments))]
        memory: list[torch.Tensor] = []
        with torch.inference_mode(False):
            running = self.program.open(
                held, lambda nbytes: self._allocate(memory, nbytes), SharedMemory(self.device, memory).address, releases
            )
            layout = running.layout
            made = output_allocation(layout, self.ends.memory)
            if len(running.parts) > 1 and (made.copied or layout.in_place):
                return self._open(arguments, False)
            limit = 0 if len(running.parts) > 1 else MAX_KEPT_SCRATCH_BYTES.get(self.device.type, 0)
            scratch = self._new_scratch(running) if layout.sizes[1] <= limit else None
        views = (self.ends.memory.views[name] for name in self.ends.results if isinstance(name, str))
        returned = frozenset(view.argument for view in views if view.argument is not None)
        return OpenProgram(
            running,
            tuple(memory),
            scratch,
            tuple(expected[name] for name in layout.held),
            tuple(expected.get(name) for name in layout.moving),
            made,
            result_views(self.ends, made.memories),
            {current_stream(self.device)},
            tuple(places[name] for name in layout.in_place),
            tuple((n, expected[name]) for n, name in enumerate(layout.moving) if name in layout.in_place),
            returned if len(running.parts) > 1 else None,
        )

    def _new_scratch(self, running: Running) -> torch.Tensor:
        return torch.empty(running.layout.sizes[1], dtype=torch.uint8, device=self.device)

    def _allocate(self, memory: list[torch.Tensor], nbytes: int) -> int:
        tensor = torch.zeros(max(nbytes, 1), dtype=torch.uint8, device=self.device)
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # before anything is uploaded to it
        memory.append(tensor)
        return tensor.data_ptr()

    def _expected_input(self, name: str, at: int) -> ExpectedInput:
        type_ = self.ends.types[name]
        order = self.ends.orders.get(name)
        return ExpectedInput(name, at, TORCH_TYPES[type_.dtype], torch.Size(type_.shape), self.device, order)


def _finish_updates(opened: OpenProgram, arguments: Sequence[Any], given: Sequence[torch.Tensor]) -> None:
    """Copy new elements to arguments that are not read in place, and count the updates as PyTorch does."""
    with torch.no_grad():
        for number, item in opened.copied_back:
            item.replace(arguments, given[number])
    written = [arguments[n] for n in opened.updated if not arguments[n].is_inference()]
    torch.autograd.graph.increment_version(written)
