"""What a busy host adds to a kernel's time, on clocks of a made-up host and device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from cuts.bench.loaded_host import AsTheyCome, Watched, load, measure, table
from cuts.search.measure import MeasuringDevice
from cuts.tests.backends.test_hold import FIVE, KERNEL, Clocks, device_of
from cuts.tests.search.fakes import problem_of


def test_runs_as_they_come_hold_what_the_device_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call takes the host 9 us: behind five copies of inputs it is 22 us late with the launch."""
    clocks = Clocks(9e-3)
    hardware = device_of(clocks, monkeypatch)

    def sample(key: str, kernel: str, repeats: int) -> tuple[float, ...]:
        return hardware.time(clocks.launch, warmup=1, repeats=repeats, cold=True, warm=FIVE).samples

    device = cast(MeasuringDevice, SimpleNamespace(device=hardware, sample=sample))
    rows: list[dict[str, Any]] = [
        {"busy/core": 1, "runs": name, **measure(device, problem_of(8), "kernel", way, 30)}
        for name, way in (("as they come", AsTheyCome()), ("held", Watched()))
    ]
    plain, held = rows
    assert (plain["late"], plain["flushes"]) == (1.0, 1)
    assert held["late"] < 0.1
    assert plain["least"] > 1e3 * KERNEL == held["least"] == held["median"] == held["90 %"]
    assert table(rows).splitlines()[0].split()[-2:] == ["late", "flushes"]


def test_what_keeps_the_host_busy_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.bench.loaded_host.time.sleep", lambda seconds: None)
    with load(1):
        pass
    with load(0):
        pass
