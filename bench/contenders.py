"""What a row compares: `cuts`' own kernels, PyTorch, the fastest plan of cuDNN, torch.compile, and a copy on the
device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import define
from cuts.backends.device import Device, Pointer
from cuts.backends.library.contraction import find_convolution
from cuts.backends.library.routine import require_library
from cuts.bench.peers import function_of, tensor_at
from cuts.bench.timing import Contender, sets_for
from cuts.bench.tuned import Tuned, TunedBuffers, group_of, together
from cuts.ir.errors import BackendError

#: Error relative to the root mean square of a result at which a row counts as wrong.
WRONG = 1e-3


@define
class Peers:
    """The libraries on the same tensors."""

    tuned: Tuned
    device: Device
    torch: Any
    sets: Sequence[TunedBuffers]

    def contenders(self, compiled: bool) -> Iterator[Contender]:
        """Yield PyTorch, cuDNN where the case is a convolution, and torch.compile where asked for."""
        call = function_of(self.tuned.case, self.torch)
        yield self._recorded("torch", call)
        group = group_of(self.tuned.case) if len(self.tuned.case.nodes) == 1 else None
        convolution = find_convolution(group) if group else None
        if convolution is not None:
            try:
                yield self._cudnn(convolution)
            except BackendError as error:
                print(f"{self.tuned.case.key}: {error.message}", file=sys.stderr)
        if compiled:
            self.torch._dynamo.reset()
            yield self._recorded("compile", self.torch.compile(call, mode="max-autotune-no-cudagraphs"))

    def difference(self) -> str:
        """Return how the result on the first set differs from PyTorch's, nothing where it does not."""
        name = self.tuned.name(self.tuned.case.nodes[-1][2])
        type_ = self.tuned.graph.types[name]
        found = np.empty(type_.shape, type_.dtype.numpy)
        self.device.download(found, self.sets[0].place(name))
        call = function_of(self.tuned.case, self.torch)
        wanted = call(*self._views(self.sets[0])).reshape(type_.shape)
        self.torch.cuda.synchronize()
        wanted = wanted.float()
        error = self.torch.from_numpy(found.astype(np.float32)).to(wanted.device) - wanted
        scale = float(wanted.square().mean().sqrt()) or 1.0
        worst = float(error.abs().max()) / scale
        # PyTorch rounds a half type behind every operation of a case, at most four; the largest value has most to lose.
        allowed = max(WRONG, 4 * type_.dtype.element.epsilon * max(1.0, float(wanted.abs().max()) / scale))
        return "" if worst <= allowed else f"differs from PyTorch by {worst:.2g} of the root mean square"

    def _views(self, memory: TunedBuffers) -> list[Any]:
        views = []
        for name, shape in self.tuned.case.inputs.items():
            place = memory.place(self.tuned.name(name))
            address = int(place.buffer.handle) + place.offset
            views.append(tensor_at(self.torch, address, shape, self.tuned.case.dtype))
        return views

    def _recorded(self, name: str, call: Any) -> Contender:
        """Record a call on every set as a CUDA graph of PyTorch's; results are kept, so that each set has one of its
        own.
        """
        torch = self.torch
        inputs = [self._views(memory) for memory in self.sets]
        stream = torch.cuda.ExternalStream(self.device.stream_handle)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                call(*inputs[0])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            results = [call(*each) for each in inputs]

        def replay(keep: object = (results, inputs)) -> None:
            with torch.cuda.stream(stream):
                graph.replay()

        return Contender(name, replay, len(self.sets))

    def _cudnn(self, convolution: Any) -> Contender:
        library: Any = require_library("cudnn")
        tensors = (*self.tuned.case.inputs, "y")

        def places(memory: TunedBuffers) -> dict[str, Pointer]:
            return {tensor: memory.place(self.tuned.name(tensor)) for tensor in tensors}

        plans = library.plans(self.device, convolution, places(self.sets[0]))
        if not plans:
            raise BackendError("cuDNN has no strict fp32 plan")
        best = min(plans, key=lambda plan: plan.seconds)
        launches = [best.launch.on(places(memory)) for memory in self.sets]
        return Contender("cudnn", self.device.capture(together(launches)), len(self.sets))


def copying(device: Device, nbytes: int, cache: int) -> Contender:
    """Return the device's own copy as a contender: it reads half of `nbytes` and writes as many."""
    half = max(16, nbytes // 2)
    pairs = [(Pointer(device.allocate(half)), Pointer(device.allocate(half))) for _ in range(sets_for(2 * half, cache))]

    def run() -> None:
        for source, destination in pairs:
            device.copy(destination, source, half)

    return Contender("copy", device.capture(run), len(pairs))


def copy_bandwidth(device: Device, nbytes: int = 1 << 30) -> float:
    """Return the bytes per second that a large copy on the device reads and writes."""
    source, destination = Pointer(device.allocate(nbytes)), Pointer(device.allocate(nbytes))
    return 2 * nbytes / device.time(lambda: device.copy(destination, source, nbytes), warmup=2, repeats=10).median
