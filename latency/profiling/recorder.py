"""Records a GPU's kernels with PyTorch's profiler, and machine facts."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .trace import TracedKernel, kernels_of

#: Bytes that are written to empty the cache: four times that of the largest GPU.
_FLUSH = 4 * (60 << 20)


class Recorder(Protocol):
    """Recorder of the kernels of a function.

    `mark` runs the marker kernel, `flush` empties the cache.
    """

    def record(self, run: Callable[[], None]) -> list[TracedKernel]:
        """Run something, wait for it, and return its kernels in order."""

    def mark(self) -> None:
        """Run the marker kernel."""

    def flush(self) -> None:
        """Write so much that nothing else is left in the cache."""


class TorchRecorder:
    """Records with PyTorch's profiler, device activities only."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._waste = torch.empty(_FLUSH // 4, dtype=torch.float32, device="cuda")
        self._value = 0.0

    def record(self, run: Callable[[], None]) -> list[TracedKernel]:
        profiler = self._torch.profiler
        self._torch.cuda.synchronize()
        with profiler.profile(activities=[profiler.ProfilerActivity.CUDA]) as profile:
            run()
            self._torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(path))
            return kernels_of(json.loads(path.read_bytes())["traceEvents"])

    def mark(self) -> None:
        self._torch.cuda._sleep(1)

    def flush(self) -> None:
        self._value += 1.0
        self._waste.fill_(self._value)


def clocks() -> str:
    """Return the driver's clock, power and temperature, or nothing.

    The clock is that of the multiprocessors.
    """
    command = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw,temperature.gpu", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def facts_of(torch: Any) -> dict[str, Any]:
    """Return a data set's facts of the machine."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "l2": getattr(properties, "L2_cache_size", 0),
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "cuda": torch.version.cuda,
        "clock": clocks(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "flush": _FLUSH,
    }
