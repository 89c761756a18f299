"""Profile of a user's own device, which `cuts predict --target NAME` uses.

Of a GPU the vendor library's layers are profiled, of an OpenCL device the kernels of `cuts`: a kernel's name is then
its tiles, so that equations 1 to 4 apply to it. Layers come in a random order of samples near the edges of steps, so a
profile may end at any time; one that is made again goes on where it ended.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from attrs import frozen

from ...ir import UsageError
from ..dataset import user_folder
from .profile import finished_rows, measure_layers, open_bench, probe
from .recorder import facts_of
from .tables import write_profile
from .tasks import LayerTask, chunks, small_tasks
from .trace import KernelDigests, TracedKernel, TraceError, summary

#: Sets of layers that a GPU's profile has.
GPU_SETS = ("edges", "general", "depthwise", "linear", "pointwise")
#: Most operations of a layer on a device that is no GPU, so that minutes measure hundreds.
SMALL_FLOPS = 3e8
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,40}")

#: Returns repeated runs of a layer, each the kernels that ran with their times.
Measure = Callable[[LayerTask], Sequence[Sequence[TracedKernel]]]


@frozen
class MadeProfile:
    """Profile that was made: its name, folder and layers."""

    name: str
    folder: Path
    layers: int


def check_name(name: str) -> None:
    """Raise `UsageError` for a name that is no file name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name: expected small letters, digits, '_', '.', '-', found '{name}'")


def profile_gpu(name: str, gpu: int, seconds: float) -> MadeProfile:
    """Profile the library's layers on a GPU through PyTorch.

    Raises `UsageError` where PyTorch has no such GPU, or where its profiler records no kernels.
    """
    check_name(name)
    records = _records_folder(name)
    try:
        bench = open_bench(records, seconds, gpu=gpu)
        probe(bench)
    except (ImportError, RuntimeError, AssertionError, TraceError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"GPU {gpu} cannot be profiled: {text}", hint="install PyTorch for CUDA") from error
    done = {row["chunk"] for row in finished_rows(records / "layers.jsonl") if "seconds" in row}
    bench.write("layers.jsonl", [{"facts": facts_of(bench.torch)}])
    measure_layers(bench, [chunk for chunk in chunks(GPU_SETS) if chunk.number not in done], "layers.jsonl")
    return _finish(name, records)


def profile_kernels(
    name: str, measure: Measure, facts: Mapping[str, Any], seconds: float, most_flops: float = SMALL_FLOPS
) -> MadeProfile:
    """Profile the kernels of `cuts` on a device, layer by layer.

    A layer that fails is reported and left out.
    """
    check_name(name)
    records, ends = _records_folder(name), time.monotonic() + seconds
    have = {row["task"] for row in finished_rows(records / "layers.jsonl") if "task" in row}
    names = KernelDigests()
    with (records / "layers.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"facts": dict(facts)}) + "\n")
        for task in small_tasks(most_flops):
            if task.key in have:
                continue
            if time.monotonic() > ends:
                break
            try:
                row = _row(task, measure(task), names)
            except (RuntimeError, ValueError, UsageError) as error:
                row = {"task": task.key, "failed": str(error).splitlines()[0]}
                print(f"{task.key}: {row['failed']}", file=sys.stderr, flush=True)
            for line in (*names.fresh("layers.jsonl"), row):
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
            out.flush()
    return _finish(name, records)


def _row(task: LayerTask, runs: Sequence[Sequence[TracedKernel]], names: KernelDigests) -> dict[str, Any]:
    """Return a layer's record; the cache is not emptied, so both states are equal."""
    calls = [tuple(run) for run in runs]
    found = summary(calls)
    middle = min(calls, key=lambda call: abs(sum(k.us for k in call) - median(sum(k.us for k in c) for c in calls)))
    return {"task": task.key, "kernels": names.launches(middle), "cold": found, "warm": found}


def _records_folder(name: str) -> Path:
    folder = user_folder() / "records" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot create {folder}: {error.strerror}") from error
    return folder


def _finish(name: str, records: Path) -> MadeProfile:
    count = write_profile(name, user_folder(), list(finished_rows(records / "layers.jsonl")))
    return MadeProfile(name, user_folder(), count)
