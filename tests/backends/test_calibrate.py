"""Ceilings of a device.

Results of microbenchmarks for known times, their storage and their effect on a target.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from attrs import evolve
from cuts.backends.ceilings.kernels import ATOM_WARPS, ATOMS, FMAS, atom_kernel
from cuts.backends.ceilings.measurement import KERNELS, measure_ceilings
from cuts.backends.ceilings.records import HEADROOM, calibrate_target, load_ceilings, save_ceilings
from cuts.backends.compilers.cubins import compile_kernel
from cuts.backends.devices import find_target
from cuts.backends.opencl.device import OpenCLDevice
from cuts.cli.main import main
from cuts.ir.compiled import KernelFunction
from cuts.ir.errors import BackendError
from cuts.ir.machine import MMA_INSTRUCTIONS
from cuts.tests.backends.hosts import HostDevice
from cuts.tests.needs import disassemble, needs_disassembler, needs_opencl, needs_toolchain

H200 = find_target("cuda:h200")
#: Matrix instructions that are measured: those of a warp.
MEASURED_INSTRUCTIONS = {n: clocks for n, clocks in H200.atoms if not MMA_INSTRUCTIONS[n].reads_shared}
CLOCK = 1.9e9
CHASE = 600e-9
BUFFER_BYTES = 1 << 30


def number(text: str, before: str) -> int:
    """Return the number that follows some text in a source."""
    tail = text.split(before, 1)[1]
    return int("".join(c for c in tail[:12].split("U")[0].split("L")[0].split(";")[0] if c.isdigit()))


def seconds(kernel: KernelFunction) -> float:
    """Return the time of each microbenchmark on a device of known rates."""
    source, blocks = kernel.source, kernel.grid[0]
    if kernel.name == "copy_global":
        return 2 * BUFFER_BYTES / 4.2e12
    if kernel.name == "read_global":
        return BUFFER_BYTES / 4.5e12
    if kernel.name == "read_l2":
        return 32 * 16 * number(source, "i < ") / 8e12
    if kernel.name == "read_shared":
        return blocks * 1024 * 16 * 4096 / (H200.NUM_SM * CLOCK * 120.0)
    if kernel.name == "multiply_add":
        return blocks * 256 * 2 * FMAS * number(source, "int i = 0; i < ") / 60e12
    if kernel.name == "barriers":
        return number(source, "int i = 0; i < ") * 25 / CLOCK + 3e-6
    if kernel.name == "chase":
        return number(source, "int i = 0; i < ") * CHASE + 5e-6
    if kernel.name.startswith("multiply_m"):
        return 1e-4
    return {"empty": 1.1e-6, "touch": 2.0e-6, "count_clocks": 2e-3}[kernel.name]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    tmp_path.chmod(0o700)
    return tmp_path


def counts(kernel: KernelFunction) -> Sequence[int]:
    """Return the counters that clock-counting kernels write.

    These and nanoseconds, or those of each block that multiplies matrices, where some share an SM.
    """
    if kernel.name == "count_clocks":
        return int(CLOCK * 2e-3), 2_000_000
    if not kernel.name.startswith("multiply_m"):
        return ()
    atoms = ATOM_WARPS * ATOMS * number(kernel.source, "int i = 0; i < ")
    fewest = int(atoms * dict(H200.atoms)[kernel.name.removeprefix("multiply_")] * 1.01)
    return [fewest, 2 * fewest] * (kernel.grid[0] // 2)


def device() -> HostDevice:
    return HostDevice(seconds, counts)


def test_rates_come_out_as_they_went_in() -> None:
    found = measure_ceilings(device())
    assert found.clock == pytest.approx(CLOCK)
    assert found.copy_bandwidth == pytest.approx(4.2e12, rel=1e-3)
    assert found.read_bandwidth == pytest.approx(4.5e12, rel=1e-3)
    assert found.l2_bandwidth == pytest.approx(8e12, rel=1e-3)
    assert found.shared_bandwidth == pytest.approx(120.0, rel=1e-3)
    assert found.fma_rate == pytest.approx(60e12, rel=1e-3)
    assert found.launch_time == pytest.approx(1.1e-6, rel=1e-3)
    assert found.barrier_clocks == pytest.approx(25.0, rel=1e-3)
    assert found.dram_latency == pytest.approx(CHASE, rel=1e-3)
    assert found.first_load == pytest.approx(0.9e-6, rel=1e-3)
    assert found.atoms == {
        name: pytest.approx(1.01 * clocks, rel=1e-3) for name, clocks in MEASURED_INSTRUCTIONS.items()
    }


def test_a_calibrated_target_leaves_head_room() -> None:
    target = calibrate_target(H200, measure_ceilings(device()))
    assert pytest.approx(HEADROOM * 4.5e12, rel=1e-3) == target.BW_global
    assert pytest.approx(HEADROOM * 60e12, rel=1e-3) == target.PERF_peak
    assert target.launch_time < 1.1e-6
    assert target.dram_latency < CHASE
    assert target.clock == H200.clock
    found = {n: (1.01 if n in MEASURED_INSTRUCTIONS else 1) * clocks / HEADROOM for n, clocks in H200.atoms}
    assert dict(target.atoms) == {n: pytest.approx(clocks, rel=1e-3) for n, clocks in found.items()}
    assert calibrate_target(H200, None) is H200


def test_stored_ceilings_apply_to_the_same_device_only() -> None:
    ceilings = measure_ceilings(device())
    assert load_ceilings(ceilings.device) is None
    save_ceilings(ceilings)
    assert load_ceilings(ceilings.device) == ceilings
    assert load_ceilings("another device") is None


@pytest.mark.parametrize(
    "damage", [{"clock": -1.0}, {"format": 0}, {"fma_rate": "fast"}, {"device": "another"}, {"atoms": {"a": 0.0}}]
)
def test_damaged_or_other_version_ceilings_are_not_used(damage: dict[str, object]) -> None:
    ceilings = measure_ceilings(device())
    path = save_ceilings(ceilings)
    assert path is not None
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    assert load_ceilings(ceilings.device) is None
    path.write_text("{")
    assert load_ceilings(ceilings.device) is None


def test_measured_ceilings_are_shown_and_steer_the_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("cuts.cli.machines.device.find_target", lambda name: H200)
    monkeypatch.setattr("cuts.cli.machines.device.open_device", lambda target: device())
    assert main(["device", "--calibrate"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^clock +1\.9e\+09$", shown, re.MULTILINE)
    assert re.search(r"^atoms\n  m16n8k4_tf32 +4\.04\n  m16n8k8_tf32 +6\.06$", shown, re.MULTILINE)
    assert load_ceilings("Made-up GPU") is not None


def test_nothing_is_kept_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    assert save_ceilings(measure_ceilings(device())) is None


@needs_opencl
def test_only_cuda_devices_are_calibrated() -> None:
    with pytest.raises(BackendError, match="cannot be calibrated"):
        measure_ceilings(OpenCLDevice(find_target("opencl")))


@needs_toolchain
@pytest.mark.parametrize("make", KERNELS, ids=lambda make: make().name)
def test_every_kernel_compiles_without_spills(make: object) -> None:
    kernel = make()  # type: ignore[operator]
    cubin = compile_kernel(evolve(kernel), "sm_90")
    assert cubin.spill_bytes == 0
    assert cubin.warnings == ()


@needs_toolchain
@needs_disassembler
@pytest.mark.parametrize(
    ("name", "arch"),
    # sm_80 multiplies no fp8, and sm_90 emulates `mma.sync` of it.
    [(n, a) for n in MEASURED_INSTRUCTIONS for a in (("sm_89",) if "f8" in n else ("sm_80", "sm_90"))],
)
def test_a_trip_multiplies_as_often_as_is_counted(name: str, arch: str, tmp_path: Path) -> None:
    """The compiler optimises, merges and moves no timed code.

    All of it stays between the two clocks.
    """
    code = compile_kernel(atom_kernel(name, 16, 132), arch).code
    lines = disassemble(code, tmp_path).splitlines()
    products = [n for n, line in enumerate(lines) if re.search(r"\b[HIQ]MMA\.", line)]
    clocks = [n for n, line in enumerate(lines) if "SR_CLOCKLO" in line]
    assert len(products) == ATOMS
    assert clocks[0] < products[0] and products[-1] < clocks[-1]
    between = Counter(
        re.findall(
            r"^\s+(?:/\*\w+\*/)?\s+(?:@!?U?P\d )?([A-Z][A-Z0-9]*)", "\n".join(lines[products[0] : products[-1]]), re.M
        )
    )
    assert sum(between.values()) <= ATOMS + 6, between
