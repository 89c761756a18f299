"""PyTorch's calls of a workload, and their time on the GPU: eager or compiled, one by one or as a captured graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from attrs import frozen

from .models import Application, Made

REPEATS, ROUNDS = 10, 7
#: Milliseconds that a round takes about, where calls are short.
ROUND = 10.0


@frozen
class CallTime:
    """Milliseconds of a call: the median of rounds, and the distance between their quartiles as a part of it."""

    ms: float
    spread: float


def time_calls(torch: Any, call: Callable[[], object]) -> CallTime:
    """Time calls that follow one another, between events on the GPU."""
    first = _round(torch, call, 1)
    repeats = max(REPEATS, int(ROUND / max(first, 1e-3))) if first < ROUND else max(1, int(4 * ROUND / first))
    samples = [_round(torch, call, repeats) for _ in range(ROUNDS)]
    low, _, high = statistics.quantiles(samples, n=4)
    middle = statistics.median(samples)
    return CallTime(middle, (high - low) / middle)


def _round(torch: Any, call: Callable[[], object], repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / repeats


def graphed(torch: Any, call: Callable[[], object]) -> Callable[[], object]:
    """Return the replay of a call that was captured as a CUDA graph."""
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
    """Let PyTorch multiply f32 as f32, and choose among all algorithms of cuDNN."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True


def on_gpu(torch: Any, model: Application, made: Made) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Yield the network and its inputs on the GPU: images with channels first and last, by the name of that."""
    network, inputs = made
    if not model.images:
        yield "", network.to("cuda"), tuple(x.to("cuda") for x in inputs)
        return
    for name, form in (("channels first", torch.contiguous_format), ("channels last", torch.channels_last)):
        yield name, network.to("cuda", memory_format=form), tuple(x.to("cuda", memory_format=form) for x in inputs)


def exact(torch: Any, made: Made, samples: int) -> Any:
    """Return what a network computes of the first samples in double precision; it is left as it was."""
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
    """Return the greatest error of the samples that there are exact values of, relative to the largest value."""
    seen = found[: len(wanted)].detach().cpu().double()
    return float((seen - wanted).abs().max() / wanted.abs().max())
