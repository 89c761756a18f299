"""One plan in several threads.

Every result is its caller's, and stays so.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from cuts.compile import CompiledPlan
from cuts.runtime.session import Session
from cuts.tests.needs import needs_opencl
from cuts.tests.runtime.handmade import example_plan, expected_outputs, random_x

THREADS, RUNS = 4, 100


def wrong_results(run: Any) -> int:
    """Call `run` from several threads and count wrong results."""

    def work(thread: int) -> list[tuple[int, Any]]:
        return [(seed, run({"x": random_x(seed)})) for seed in range(thread * RUNS, (thread + 1) * RUNS)]

    with ThreadPoolExecutor(THREADS) as pool:
        found = [pair for pairs in pool.map(work, range(THREADS)) for pair in pairs]
    assert len(found) == THREADS * RUNS
    return sum(
        not np.allclose(outputs[name], want, rtol=1e-5, atol=1e-6)
        for seed, outputs in found
        for name, want in expected_outputs(random_x(seed)).items()
    )


@needs_opencl
def test_a_plan_runs_right_from_any_thread() -> None:
    assert wrong_results(CompiledPlan(example_plan()).run) == 0


@needs_opencl
def test_sessions_of_one_plan_run_side_by_side() -> None:
    plan = example_plan()
    sessions = [Session(plan) for _ in range(THREADS)]
    for number, session in enumerate(sessions):
        x = random_x(number)
        np.testing.assert_allclose(session.run({"x": x})["y"], expected_outputs(x)["y"], rtol=1e-5, atol=1e-6)
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda pair: pair[1].run({"x": random_x(pair[0])}), enumerate(sessions * 10)))
    for seed, outputs in enumerate(found):
        np.testing.assert_allclose(outputs["y"], expected_outputs(random_x(seed))["y"], rtol=1e-5, atol=1e-6)


@needs_opencl
def test_a_trace_is_not_interrupted() -> None:
    session = Session(example_plan())
    x = random_x(1)
    trace = session.trace({"x": x})
    next(trace)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(session.run, {"x": random_x(2)})
        written = {name: value for _, values in trace for name, value in values.items()}
        other.result()
    np.testing.assert_allclose(written["left"], expected_outputs(x)["left"], rtol=1e-5, atol=1e-6)
