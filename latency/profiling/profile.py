"""Profiles layers on a GPU: kernels, grids and times of PyTorch.

cuDNN and cuBLAS choose the kernels.

    python -m cuts.latency.profiling --out DIR --seconds 480

Each call is measured with an empty cache (`cold`) and with its input just written, as in a network (`warm`); times are
those of the kernels on the device. A call skips the rows that the directory already has, so a run that ends early
continues with the next call. `layers.jsonl` grows by chunks of tasks, `networks.jsonl` by networks.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import define

from ..dataset import GAP_NETWORKS
from .calls import LibraryCall, RandomPool, call_of
from .networks import UNKNOWN, image_size, interpreter, load
from .recorder import Recorder, TorchRecorder, clocks, facts_of
from .tasks import DENSE, PRECISIONS, SAMPLES, SETS, Chunk, LayerTask, chunks, listed_chunks
from .trace import KernelDigests, TracedKernel, TraceError, calls_of, summary

_STATES = ("cold", "warm")


@define
class LayerBench:
    """Resources of a run: PyTorch, memory, recorder, repetitions, files, and end."""

    torch: Any
    memory: RandomPool
    recorder: Recorder
    repeats: int
    folder: Path
    names: KernelDigests
    ends: float
    device: str = "cuda"

    def write(self, file: str, rows: Sequence[dict[str, Any]]) -> None:
        """Add rows to a file, the names of new kernels before them."""
        with (self.folder / file).open("a", encoding="utf-8") as out:
            for row in (*self.names.fresh(file), *rows):
                out.write(json.dumps(row, separators=(",", ":")) + "\n")

    def round(self, precision: str) -> None:
        """Set how products are rounded."""
        allow = precision == "tf32"
        self.torch.backends.cudnn.allow_tf32 = allow
        self.torch.backends.cuda.matmul.allow_tf32 = allow


def probe(bench: LayerBench) -> None:
    """Check the profiler with a call of known kernels.

    A profiler that records something else is found early.

    Raises `TraceError`, with the names that were recorded.
    """
    call = call_of(LayerTask("probe", "any", "relu", (8, 64, 14, 14)), bench.torch, bench.memory)
    kernels = bench.recorder.record(lambda: _repeat(bench, [call]))
    try:
        found = calls_of(kernels, bench.repeats * len(_STATES))
    except TraceError as error:
        raise TraceError(f"{error}; recorded: {Counter(kernel.name for kernel in kernels).most_common(8)}") from error
    if any(len(each) != 1 for each in found):
        raise TraceError(f"one kernel was launched, recorded: {found}")
    print(f"probe: {found[0][0].name} {[each[0].us for each in found]}", flush=True)


# ---- layers


def measure_chunk(bench: LayerBench, chunk: Chunk) -> list[dict[str, Any]]:
    """Return the rows of a chunk; a failed task has a row."""
    bench.round(chunk.precision)
    rows, ready = [], []
    for task in chunk.tasks:
        try:
            call = call_of(task, bench.torch, bench.memory)
            call.run()
            ready.append((task, call))
        except RuntimeError as error:
            rows.append({"task": task.key, "failed": str(error).splitlines()[0]})
    kernels = bench.recorder.record(lambda: _repeat(bench, [call for _, call in ready]))
    calls = calls_of(kernels, len(ready) * bench.repeats * len(_STATES))
    each = bench.repeats * len(_STATES)
    return rows + [_row(bench, task, calls[i * each : (i + 1) * each]) for i, (task, _) in enumerate(ready)]


def _repeat(bench: LayerBench, calls: Sequence[LibraryCall]) -> None:
    """Run every call cold and warm in turn, markers around each."""
    recorder = bench.recorder
    for call in calls:
        for _ in range(bench.repeats):
            for state in _STATES:
                recorder.flush()
                if state == "warm":
                    call.produce()
                recorder.mark()
                call.run()
                recorder.mark()


def _row(bench: LayerBench, task: LayerTask, calls: Sequence[Sequence[TracedKernel]]) -> dict[str, Any]:
    states = {state: summary([tuple(call) for call in calls[i :: len(_STATES)]]) for i, state in enumerate(_STATES)}
    shown = [tuple(call) for call in calls]
    launches = bench.names.launches(max(shown, key=shown.count))
    return {"task": task.key, "kernels": launches, **states}


def measure_layers(bench: LayerBench, wanted: Sequence[Chunk], file: str) -> int:
    """Measure chunks until the time is over; return how many are left."""
    slowest = 0.0
    for done, chunk in enumerate(wanted):
        begin = time.monotonic()
        if begin + 1.3 * slowest > bench.ends:
            return len(wanted) - done
        try:
            rows = measure_chunk(bench, chunk)
        except TraceError as error:
            rows = [{"chunk": chunk.number, "failed": str(error)}]
            print(f"chunk {chunk.number}: {error}", file=sys.stderr, flush=True)
        took = time.monotonic() - begin
        slowest = max(slowest, took) if done else 0.0  # the first run includes one-time loading
        bench.write(
            file,
            [*rows, {"chunk": chunk.number, "tasks": len(chunk.tasks), "seconds": round(took, 2), "clock": clocks()}],
        )
        print(
            f"chunk {chunk.number} {chunk.precision}: {len(rows)} rows in {took:.1f} s ({done + 1} of {len(wanted)})",
            flush=True,
        )
    return 0


# ---- networks


def measure_network(bench: LayerBench, name: str, batch: int, precision: str) -> list[dict[str, Any]]:
    """Return the rows of a network's layers, and one of the whole."""
    bench.round(precision)
    graph = load(name, bench.torch, bench.device)
    x = bench.torch.randn(batch, 3, image_size(name), image_size(name), device=bench.device)
    runner = interpreter(graph, bench.recorder.mark, bench.torch)

    def time_layers() -> None:
        bench.recorder.flush()
        runner.layers = []
        runner.run(x)

    def time_whole() -> None:
        for _ in range(bench.repeats):
            time_layers()

    time_layers()
    kernels = bench.recorder.record(time_whole)
    layers = runner.layers
    calls = calls_of(kernels, len(layers) * bench.repeats)
    facts = {"network": name, "batch": batch, "precision": precision}
    rows = []
    for i, layer in enumerate(layers):
        own = calls[i :: len(layers)]
        rows.append(
            {**facts, "layer": i, **layer, "kernels": bench.names.launches(max(own, key=own.count)), **summary(own)}
        )
    whole = {"whole": graph_seconds(bench, graph, x), "launches": sum(len(row["kernels"]) for row in rows)}
    return [*rows, {**facts, **whole, "clock": clocks()}]


def graph_seconds(bench: LayerBench, model: Callable[[Any], Any], x: Any, repeats: int = 11) -> list[float]:
    """Return a network's milliseconds as one recorded graph.

    Each run has an empty cache.
    """
    torch = bench.torch
    recorded = torch.cuda.CUDAGraph()
    model(x)
    torch.cuda.synchronize()
    with torch.cuda.graph(recorded):
        model(x)
    recorded.replay()
    found = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        bench.recorder.flush()
        begin.record()
        recorded.replay()
        end.record()
        torch.cuda.synchronize()
        found.append(round(begin.elapsed_time(end), 5))
    return found


def measure_networks(
    bench: LayerBench, names: Sequence[str], batches: Sequence[int], have: set[tuple[str, int, str]]
) -> int:
    """Measure networks until the time is over; return how many are left."""
    wanted = [(name, batch, precision) for batch in batches for name in names for precision in PRECISIONS]
    left = [each for each in wanted if each not in have]
    for done, each in enumerate(left):
        begin = time.monotonic()
        if begin > bench.ends:
            return len(left) - done
        try:
            rows = measure_network(bench, *each)
        except (RuntimeError, TraceError) as error:
            rows = [{"network": each[0], "batch": each[1], "precision": each[2], "failed": str(error).splitlines()[0]}]
        bench.write("networks.jsonl", rows)
        whole = rows[-1].get("whole", rows[-1].get("failed"))
        print(
            f"{' '.join(map(str, each))}: {len(rows) - 1} layers, {whole} in {time.monotonic() - begin:.1f} s",
            flush=True,
        )
        bench.torch.cuda.empty_cache()
    return 0


# ---- a run


def finished_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, without an incomplete last line.

    There are none without a file.
    """
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            print(f"{path.name}: a line is cut short and left out", file=sys.stderr)


def open_bench(folder: Path, seconds: float, *, repeats: int = 5, gpu: int = 0, benchmark: bool = False) -> LayerBench:
    """Return the bench of a GPU, whose records go to a folder."""
    # Recorded graphs and a profiler that leaves between sessions do not agree.
    os.environ.setdefault("TEARDOWN_CUPTI", "0")
    torch = import_module("torch")
    torch.cuda.set_device(gpu)
    torch.set_grad_enabled(False)
    torch.backends.cudnn.benchmark = benchmark
    torch.manual_seed(0)
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + seconds
    return LayerBench(torch, RandomPool(torch, "cuda"), TorchRecorder(torch), repeats, folder, KernelDigests(), ends)


def saved_samples() -> str:
    """Return the number of samples saved by sampling at steps' edges.

    The comparison is with sweeps of all values.
    """
    return f"samples beside edges: {SAMPLES} of the {DENSE} values of a whole sweep, {DENSE / SAMPLES:.0f} times fewer"


def _chunks_of_sets(names: str) -> tuple[Chunk, ...]:
    return chunks([name for name in names.split(",") if name])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where files are written")
    parser.add_argument(
        "--have", type=Path, metavar="DIR", help="files of an earlier run: what they have is not measured again"
    )
    parser.add_argument("--seconds", type=float, default=480.0, help="end after this")
    parser.add_argument(
        "--sets",
        default=",".join(name for name in SETS if not name.startswith("more")),
        help="sets of layers, with commas; empty for none",
    )
    parser.add_argument("--tasks", type=Path, metavar="FILE", help="keys of layers, one a line, instead of sets")
    parser.add_argument(
        "--networks", default=",".join((*GAP_NETWORKS, *UNKNOWN)), help="networks, with commas; empty for none"
    )
    parser.add_argument("--batches", default="16,1", help="batches of the networks, with commas")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--most", type=int, default=0, metavar="N", help="at most so many chunks of layers (0: all)")
    parser.add_argument("--benchmark", action="store_true", help="let cuDNN time its algorithms instead of guessing")
    parser.add_argument("--file", default="layers.jsonl", help="the name of the file of layers")
    return parser.parse_args()


def main() -> int:
    """Measure networks, then layers, within the time limit."""
    options = _parse()
    have = options.have or options.out
    chunks_done = {row["chunk"] for row in finished_rows(have / options.file) if "seconds" in row}
    networks_done = {
        (row["network"], row["batch"], row["precision"])
        for row in finished_rows(have / "networks.jsonl")
        if "whole" in row
    }
    bench = open_bench(options.out, options.seconds, repeats=options.repeats, benchmark=options.benchmark)
    bench.write(options.file, [{"facts": facts_of(bench.torch), "benchmark": options.benchmark}])
    print(saved_samples(), flush=True)
    try:
        probe(bench)
    except TraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return 4
    names = [name for name in options.networks.split(",") if name]
    left = measure_networks(bench, names, [int(b) for b in options.batches.split(",")], networks_done)
    every = listed_chunks(options.tasks.read_text("utf-8").split()) if options.tasks else _chunks_of_sets(options.sets)
    wanted = [chunk for chunk in every if chunk.number not in chunks_done]
    wanted = wanted[: options.most] if options.most else wanted
    left += measure_layers(bench, wanted, options.file)
    print(f"done; {left} networks or chunks are left" if left else "done; nothing is left", flush=True)
    return 0
