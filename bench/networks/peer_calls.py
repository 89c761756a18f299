"""PyTorch calls of a workload, and their time on the GPU.

They are eager or compiled, one by one or as a captured graph.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from importlib import import_module
from time import perf_counter
from typing import Any

from attrs import frozen

from .models import Application, Made

REPEATS, ROUNDS = 10, 7
#: Milliseconds that a round takes about, where calls are short.
ROUND = 10.0


@frozen
class CallTime:
    """Milliseconds of a call: median of rounds, and relative quartile distance."""

    ms: float
    spread: float


def time_calls(torch: Any, call: Callable[[], object]) -> CallTime:
    """Time calls that follow one another, between events on the GPU."""
    first = round_time(torch, call, 1)
    repeats = max(REPEATS, int(ROUND / max(first, 1e-3))) if first < ROUND else max(1, int(4 * ROUND / first))
    samples = [round_time(torch, call, repeats) for _ in range(ROUNDS)]
    low, _, high = statistics.quantiles(samples, n=4)
    middle = statistics.median(samples)
    return CallTime(middle, (high - low) / middle)


def round_time(torch: Any, call: Callable[[], object], repeats: int) -> float:
    """Return GPU milliseconds of a call among repeated ones."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def capture_graph(torch: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a call as a captured CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], object] = graph.replay
    return replay


def strict(torch: Any) -> None:
    """Multiply f32 strictly, with a choice among all of cuDNN's algorithms."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def on_gpu(torch: Any, model: Application, made: Made) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the network and inputs on the GPU, by channel order.

    Images come with channels first and last.
    """
    network, inputs = made
    if not model.images:
        yield "", network.to("cuda"), tuple(x.to("cuda") for x in inputs)
        return
    for name, form in (("channels first", torch.contiguous_format), ("channels last", torch.channels_last)):
        yield name, network.to("cuda", memory_format=form), tuple(x.to("cuda", memory_format=form) for x in inputs)


def exact(torch: Any, made: Made, samples: int) -> Any:
    """Return double-precision results of the first samples.

    The network is restored.
    """
    network, inputs = made
    network.to("cuda").double()
    given = [x[:samples].to("cuda") for x in inputs]
    with torch.no_grad():
        found = first(network(*(x.double() if x.is_floating_point() else x for x in given))).cpu()
    network.float()
    torch.cuda.empty_cache()
    return found


def first(result: Any) -> Any:
    """Return the first tensor of a result."""
    return result[0] if isinstance(result, (tuple, list)) else result


def error_of(found: Any, wanted: Any) -> float:
    """Return the greatest error, relative to the largest exact value.

    Samples without exact values are left out.
    """
    seen = found[: len(wanted)].detach().cpu().double()
    return float((seen - wanted).abs().max() / wanted.abs().max())


#: Turns of a loop, where one of them takes a millisecond or longer; shorter ones turn more often.
TURNS, MAX_TURNS = 20, 400


class Compiled:
    """Program compiled by XLA: `call` returns results, `loop` repeats."""

    def __init__(self, program: Any, inputs: tuple[Any, ...]) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's contenders need memory, too
        jax, export = import_module("jax"), import_module("torchax.export")
        jax.config.update("jax_default_matmul_precision", "highest")  # by default f32 is multiplied as TF32
        self.jax = jax
        state, function = export.exported_program_to_jax(program)
        self.state = jax.device_put(state)
        self.inputs = jax.device_put(tuple(x.numpy() for x in inputs))
        self._call = jax.jit(function)

        def turns(count: Any, state: Any, given: tuple[Any, ...]) -> Any:
            def turn(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
                # Zero times a float is no constant, as the float may be NaN: no turn can be left out.
                nothing = 0 * function(state, given)[0].ravel()[0]
                return tuple(x + nothing.astype(x.dtype) for x in given)

            return jax.lax.fori_loop(0, count, turn, given)

        self._loop = jax.jit(turns)

    def call(self) -> Any:
        """Return the results of a call, which may not be there yet."""
        return self._call(self.state, self.inputs)

    def loop(self, count: int) -> Any:
        """Return the final inputs after `turns` iterations."""
        return self._loop(count, self.state, self.inputs)

    def time_loop(self, run: Callable[[int], Any]) -> CallTime:
        """Return the time of an iteration of a repeated call."""

        def seconds(count: int) -> float:
            start = perf_counter()
            self.jax.block_until_ready(run(count))
            return perf_counter() - start

        seconds(1)
        count = min(MAX_TURNS, max(TURNS, int(TURNS * 1e-3 / max(seconds(1), 1e-6))))
        samples = [seconds(count) / count * 1e3 for _ in range(ROUNDS)]
        low, _, high = statistics.quantiles(samples, n=4)
        middle = statistics.median(samples)
        return CallTime(middle, (high - low) / middle)

    def one_by_one(self, count: int) -> Any:
        """Return the last result of `turns` consecutive calls."""
        for _ in range(count - 1):
            self.call()
        return self.call()
