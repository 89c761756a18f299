"""OpenCL: choice of a platform, parallel builds, and messages of failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.device import Device, Pointer, time_kernel
from cuts.backends.devices import find_target
from cuts.backends.opencl import device_choice as opencl
from cuts.backends.opencl import probe
from cuts.backends.opencl.device import OpenCLDevice
from cuts.backends.opencl.device_choice import choose_device
from cuts.ir.compiled import Argument, KernelFunction
from cuts.ir.errors import BackendError
from cuts.ir.types import DType
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.as_users_build

HELPER = "int twice(int x) { return 2 * x; }\n"


def copy_kernel(
    name: str = "k", prologue: str = HELPER, body: str = "y[i] = twice(x[i]);", **fields: Any
) -> KernelFunction:
    """Return a kernel on ints with 4 blocks of 16 threads."""
    source = f"{prologue}__kernel void {name}(__global const int* x, int x_base, __global int* y, int y_base)"
    source += f" {{ x += x_base; y += y_base; int i = get_global_id(0); {body} }}\n"
    arguments = (Argument("a", DType.I32, False), Argument("b", DType.I32, True))
    return KernelFunction(
        **{
            "name": name,
            "dialect": "opencl",
            "source": source,
            "grid": (4, 1, 1),
            "block": (16, 1, 1),
            "arguments": arguments,
            **fields,
        }
    )


@pytest.fixture(scope="module")
def device() -> Device:
    """The device of this machine."""
    return OpenCLDevice(find_target("opencl"))


def run(
    device: Device, kernels: list[KernelFunction], start: int = 0, binaries: Sequence[bytes | None] = ()
) -> list[Any]:
    """Run each kernel on 64 ints from element `start` on.

    Results follow the inputs in the same buffer.
    """
    buffer = device.allocate(4 * (start + 128))
    data = np.arange(64, dtype=np.int32)
    results = []
    for kernel, loaded in zip(kernels, device.build(kernels, binaries), strict=True):
        device.upload(Pointer(buffer, 4 * start), data)
        device.bind(loaded, kernel, [Pointer(buffer, 4 * start), Pointer(buffer, 4 * (start + 64))])()
        out = np.empty(64, np.int32)
        device.download(out, Pointer(buffer, 4 * (start + 64)))
        results.append(out)
    return results


@needs_opencl
@settings(max_examples=5, deadline=None)
@given(start=st.integers(0, 100))
def test_offsets_reach_the_kernel(start: int) -> None:
    (result,) = run(OpenCLDevice(find_target("opencl")), [copy_kernel()], start)
    assert np.array_equal(result, 2 * np.arange(64))


@needs_opencl
def test_kernels_that_share_helpers_share_a_program(device: Device) -> None:
    kernels = [
        copy_kernel("k0"),
        copy_kernel("k1", body="y[i] = twice(x[i]) + 1;"),
        copy_kernel("k2", prologue=HELPER.replace("2 *", "3 *")),
    ]
    loaded = device.build(kernels)
    assert loaded[0] is loaded[1]
    assert loaded[0] is not loaded[2]
    assert [int(result[5]) for result in run(device, kernels)] == [10, 11, 15]


@needs_opencl
def test_kernels_of_one_name_stay_separate(device: Device) -> None:
    assert [int(result[5]) for result in run(device, [copy_kernel(), copy_kernel(body="y[i] = 7;")])] == [10, 7]


@needs_opencl
def test_incompatible_kernels_are_built_one_by_one(device: Device) -> None:
    macro = "__kernel void {0}_(__global int* x) {{ }}\nint helper(int x) {{ return {1}; }}\n"
    kernels = [
        copy_kernel("k0", macro.format("a", "x"), "y[i] = helper(x[i]);"),
        copy_kernel("k1", macro.format("b", "-x"), "y[i] = helper(x[i]);"),
    ]
    assert [int(result[5]) for result in run(device, kernels)] == [5, -5]


@needs_opencl
def test_binaries_of_the_device_need_no_compiler(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = [copy_kernel("k0"), copy_kernel("k1", body="y[i] = 7;"), copy_kernel("k2", HELPER.replace("2 *", "3 *"))]
    binaries = device.binaries(kernels)
    assert [code is not None for code in binaries] == [True, False, True], "two programs"
    built: list[str] = []
    compile_ = OpenCLDevice._program
    monkeypatch.setattr(OpenCLDevice, "_program", lambda self, text: built.append(text) or compile_(self, text))
    loaded = device.build(kernels, binaries)
    assert not built and loaded[0] is loaded[1] is not loaded[2]
    assert [int(result[5]) for result in run(device, kernels, binaries=binaries)] == [10, 7, 15]
    monkeypatch.setenv("POCL_MAX_WORK_GROUP_SIZE", "512")  # another compilation: binaries of the first are not taken
    other = OpenCLDevice(find_target("opencl"))
    assert [int(result[5]) for result in run(other, kernels, binaries=binaries)] == [10, 7, 15]
    assert len(built) == 2
    damaged = [code and code[:64] + b"no program" for code in binaries]
    assert [int(result[5]) for result in run(device, kernels, binaries=damaged)] == [10, 7, 15]
    assert len(built) == 4


@needs_opencl
def test_shared_memory_and_barriers(device: Device) -> None:
    body = "__local int s[16]; int t = get_local_id(0); s[t] = x[i]; barrier(CLK_LOCAL_MEM_FENCE); y[i] = s[15 - t];"
    (result,) = run(device, [copy_kernel(body=body, shared_bytes=64)])
    assert np.array_equal(result, np.arange(64).reshape(4, 16)[:, ::-1].ravel())


@needs_opencl
@needs_opencl
def test_warnings_of_the_compiler_stay_off_the_terminal(device: Device, capfd: pytest.CaptureFixture[str]) -> None:
    body = "int unused; int z = 3; if (z = x[i]) y[i] = z; 1 + 2;"
    run(device, [copy_kernel(body=body)])
    assert capfd.readouterr() == ("", "")


def test_a_grid_without_blocks_does_nothing(device: Device) -> None:
    time_kernel(
        device, copy_kernel(grid=(0, 1, 1)), [Pointer(device.allocate(4)), Pointer(device.allocate(4))], repeats=2
    )


@needs_opencl
def test_build_failure_shows_first_fault_and_source_path(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(BackendError) as caught:
        device.build([copy_kernel("fine"), copy_kernel("broken", body="y[i] = nonsense;")])
    text = str(caught.value)
    assert text.startswith("kernel broken does not compile for Portable")
    assert "nonsense" in text
    assert len(text.splitlines()) == 1
    assert "__kernel void broken" in (tmp_path / "cache" / "refused" / "broken.cl").read_text()
    assert "nonsense" in (tmp_path / "cache" / "refused" / "broken.log").read_text()
    assert caught.value.exit_code == 4


@needs_opencl
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block": (5000, 1, 1)}, "5000 threads per block"),
        ({"shared_bytes": 1 << 30}, "bytes of shared memory"),
    ],
)
def test_limits_of_the_device_are_named(device: Device, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BackendError, match=message):
        device.build([copy_kernel(**fields)])


@needs_opencl
def test_wrong_parameters_are_named(device: Device) -> None:
    kernel = copy_kernel()
    extra = evolve(kernel, arguments=(*kernel.arguments, Argument("c", DType.I32, False)))
    (loaded,) = device.build([extra])
    with pytest.raises(BackendError, match="parameters"):
        device.bind(loaded, extra, [Pointer(device.allocate(256))] * 3)


@needs_opencl
def test_too_large_an_allocation_is_named(device: Device) -> None:
    with pytest.raises(BackendError, match="one allocation of"):
        device.allocate(1 << 50)


@needs_opencl
def test_times_are_samples(device: Device) -> None:
    buffer = device.allocate(1024)
    timing = time_kernel(device, copy_kernel(), [Pointer(buffer), Pointer(buffer, 512)], repeats=5, cold=True)
    assert len(timing.samples) == 5
    assert timing.best <= timing.median
    assert timing.spread >= 0


# ---- choosing a platform


def platform(name: str, version: str) -> SimpleNamespace:
    """Return a platform with one device."""
    return SimpleNamespace(name=name, version=version, get_devices=lambda: [SimpleNamespace(name=f"cpu of {version}")])


OLD = platform("Portable Computing Language", "OpenCL 3.0 PoCL 3.0-rc2  Linux")
NEW = platform("Portable Computing Language", "OpenCL 3.0 PoCL 3.1+debian  Linux")
WRONG = platform("Portable Computing Language", "OpenCL 3.0 PoCL 5.0+debian  Linux")
OTHER = platform("A vendor", "OpenCL 3.0")


def choose_platform(monkeypatch: pytest.MonkeyPatch, platforms: list[Any], wanted: str = "") -> Any:
    """Return the platform that is chosen among some.

    Those of `WRONG` compile kernels wrongly.
    """
    monkeypatch.setattr(
        opencl, "import_opencl", lambda: SimpleNamespace(get_platforms=lambda: platforms, Error=RuntimeError)
    )
    monkeypatch.setattr(opencl, "_is_sound", lambda device: device.name != WRONG.get_devices()[0].name)
    monkeypatch.setenv("CUTS_OPENCL_PLATFORM", wanted)
    return choose_device().platform


def test_the_newest_pocl_wins_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_platform(monkeypatch, [OTHER, OLD, NEW]) is NEW
    assert choose_platform(monkeypatch, [NEW, OLD, OTHER]) is NEW
    assert choose_platform(monkeypatch, [OTHER, OLD]) is OLD


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_platform(monkeypatch, [NEW, OLD, OTHER], "3.0-rc2") is OLD
    assert choose_platform(monkeypatch, [NEW, OLD, OTHER], "vendor") is OTHER
    with pytest.raises(BackendError, match="platforms are: Portable"):
        choose_platform(monkeypatch, [NEW, OLD], "nvidia")


def test_a_platform_that_compiles_wrongly_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose_platform(monkeypatch, [WRONG, OLD, OTHER]) is OLD
    assert "PoCL 5.0" in caplog.text and "passed over" in caplog.text
    assert choose_platform(monkeypatch, [WRONG, OLD], "pocl 5.0") is WRONG
    with pytest.raises(BackendError, match="no OpenCL platform computes a small kernel with a barrier right"):
        choose_platform(monkeypatch, [WRONG])


@needs_opencl
def test_the_probe_tells_right_from_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    device = OpenCLDevice(find_target("opencl"))
    assert probe.computes_right(device._cl, device._context)
    monkeypatch.setattr(probe, "_SOURCE", probe._SOURCE.replace("lane < 1", "lane < 0"))
    assert not probe.computes_right(device._cl, device._context)


def test_no_platform_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendError, match="pip install"):
        choose_platform(monkeypatch, [])
