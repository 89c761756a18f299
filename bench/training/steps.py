"""Training steps of one model in several ways: times and peak memory.

A step is forward pass, loss, backward pass and PyTorch's fused gradient descent with momentum. A way is measured before
the next one is compiled: Dynamo marks code that one backend could not capture for all of them.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping
from copy import deepcopy
from time import perf_counter
from typing import Any

from attrs import frozen
from cuts.bench.networks.peer_calls import autocast
from cuts.bench.operators.timing import set_precision
from cuts.compile.torch_backend import cuts_backend

from .models import TrainingCase

#: Options of `torch.compile` of each way but eager PyTorch.
WAYS: Mapping[str, Mapping[str, Any] | None] = {
    "eager": None, "inductor": {}, "autotuned": {"mode": "max-autotune-no-cudagraphs"},
    "cuts": {"backend": cuts_backend},
}  # fmt: skip
#: Steps until losses are compared and those that are profiled; rounds, and the seconds that one takes about.
STEPS, PROFILED_STEPS, ROUNDS, ROUND_SECONDS = 3, 2, 5, 0.15
RATE, MOMENTUM = 1e-3, 0.9


@frozen
class CompiledStep:
    """Step of a way, its first losses, and bytes of its state."""

    run: Callable[[], Any]
    losses: list[float]
    compiling: float
    own_bytes: int
    clear: Callable[[], None]


def prepare(torch: Any, case: TrainingCase, way: str, precision: str, budget: float | None = None) -> CompiledStep:
    """Compile a copy of a module and run its first steps."""
    torch._dynamo.reset()
    set_precision(torch, precision)
    gc.collect()
    before, start = torch.cuda.memory_allocated(), perf_counter()
    network = deepcopy(case.module)
    given, ours = WAYS[way], dict[str, Any]({"budget": budget} if budget else {})
    ours |= {"precision": precision} if precision == "fp32x3" else {}
    more = {"options": ours} if ours and way == "cuts" else {}
    call = network if given is None else torch.compile(network, **given, **more)
    optimiser = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)

    def step() -> Any:
        optimiser.zero_grad(set_to_none=True)
        with autocast(torch, precision):
            found = call(*case.inputs)
        loss = case.loss(found.float())
        loss.backward()
        optimiser.step()
        return loss.detach()

    losses = [float(step()) for _ in range(STEPS)]
    optimiser.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    seconds = perf_counter() - start
    gc.collect()
    return CompiledStep(step, losses, seconds, torch.cuda.memory_allocated() - before, optimiser.zero_grad)


def measure(torch: Any, step: CompiledStep) -> dict[str, Any]:
    """Return milliseconds of a compiled step and megabytes at its peak."""
    count = max(2, min(50, int(ROUND_SECONDS / _wall(torch, step.run, 2))))
    rounds = [_wall(torch, step.run, count) for _ in range(ROUNDS)]
    step.clear()
    peak, kernels = _peak(torch, step.run), _profile(torch, step.run)
    step.clear()
    return {
        "ms": statistics.median(rounds) * 1e3,
        "spread": (max(rounds) - min(rounds)) / statistics.median(rounds),
        "busy_ms": sum(seconds for seconds, _ in kernels.values()) * 1e3,
        "launches": sum(launches for _, launches in kernels.values()),
        "peak_mb": (peak + step.own_bytes) / 1e6,
        "temporary_mb": peak / 1e6,
        "losses": step.losses,
        "compiling_s": step.compiling,
        "kernels": kernels,
    }


def _wall(torch: Any, step: Callable[[], Any], count: int) -> float:
    """Return the seconds of a step among others."""
    torch.cuda.synchronize()
    start = perf_counter()
    for _ in range(count):
        step()
    torch.cuda.synchronize()
    return (perf_counter() - start) / count


def _peak(torch: Any, run: Callable[[], Any]) -> int:
    """Return the bytes that a step takes for a time, gradients included."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    peak: int = torch.cuda.max_memory_allocated() - before
    return peak


def _profile(torch: Any, run: Callable[[], Any]) -> dict[str, tuple[float, int]]:
    """Return seconds and launches of each kernel of a step, the longest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(PROFILED_STEPS):
            run()
        torch.cuda.synchronize()
    found: dict[str, tuple[float, int]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            seconds, launches = found.get(event.name, (0.0, 0))
            found[event.name] = seconds + event.time_range.elapsed_us() * 1e-6 / PROFILED_STEPS, launches + 1
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    return {name: (seconds, launches // PROFILED_STEPS) for name, (seconds, launches) in ordered}
