"""Throughput of a plan in concurrent sessions.

Each has its own memory and stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

from ..backends import Array
from ..compile import CompiledPlan
from ..ir import UsageError
from ..runtime import Session
from ..runtime.native import PackedPlan
from .output import AnyPlan


def measure_throughput(
    plan: AnyPlan | PackedPlan, inputs: Mapping[str, Array], count: int, warmup: int, iters: int
) -> float:
    """Return the runs per second of `count` concurrent sessions.

    Each runs `iters` times in a thread. Inputs and outputs are copied, as in single runs.

    Raises `UsageError` for plans whose sessions cannot run at the same time.
    """
    sessions = [_session_runner(plan) for _ in range(count)]
    started = Barrier(count)

    def work(run: Callable[[Mapping[str, Array]], Any]) -> tuple[float, float]:
        for _ in range(warmup):
            run(inputs)
        started.wait()
        begin = time.perf_counter()
        for _ in range(iters):
            run(inputs)
        return begin, time.perf_counter()

    with ThreadPoolExecutor(count) as pool:
        times = list(pool.map(work, sessions))
    return count * iters / (max(end for _, end in times) - min(begin for begin, _ in times))


def _session_runner(plan: AnyPlan | PackedPlan) -> Callable[[Mapping[str, Array]], Any]:
    if isinstance(plan, PackedPlan):
        return plan.new_session().run
    if isinstance(plan, CompiledPlan) and plan.target.dialect != "reference":
        return Session(plan.plan).run
    raise UsageError(
        "--sessions: only a plan of one part, which launches kernels, has several sessions",
        hint="compile the model with --strict, or for one size of each dim",
    )
