"""Damaged files in PoCL's cache are set aside.

Forked processes report a disabled OpenCL.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from cuts.backends.opencl.device import OpenCLDevice
from cuts.backends.opencl.device_choice import choose_device
from cuts.backends.opencl.pocl_cache import quarantine_damaged
from cuts.tests.needs import needs_opencl

RUN = """
import numpy as np
from cuts.runtime.session import Session
from cuts.tests.runtime.handmade import example_plan, expected_outputs, random_x
x = random_x()
np.testing.assert_allclose(Session(example_plan()).run({"x": x})["y"], expected_outputs(x)["y"], rtol=1e-5, atol=1e-6)
"""
FORK = (
    RUN
    + """
import os, sys
from cuts.ir import BackendError
plan = example_plan()
session = Session(plan)
pid = os.fork()
if pid == 0:
    found = []
    for call in (lambda: session.run({"x": x}), lambda: Session(plan)):
        try:
            call()
        except BackendError as error:
            found.append("spawn" in str(error))
    os._exit(0 if found == [True, True] else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
)


def program(cache: Path, files: dict[str, bytes], age: float = 60) -> Path:
    """Write the files of a program in PoCL's layout, some seconds old."""
    folder = cache / "AB" / "rest"
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (time.time() - age,) * 2)
    return folder


#: A library whose header a table of two sections follows, and bitcode of one block of two words.
LIBRARY = b"\x7fELF" + bytes(36) + struct.pack("<Q10xHH2x", 64, 64, 2) + bytes(128)
BITCODE = b"BC\xc0\xde" + struct.pack("<II", 8, 2) + bytes(8)


@pytest.mark.parametrize(
    ("changed", "kept"),
    [
        ({}, True), ({"k/k.so": LIBRARY[:-64]}, False), ({"k/k.so": b""}, False), ({"k/k.so": bytes(192)}, False),
        ({"program.bc": BITCODE[:-4]}, False), ({"program.bc": b""}, False), ({"program.bc": bytes(20)}, False),
        ({"notes.txt": b""}, True),
    ],
)  # fmt: skip
def test_one_damaged_file_is_enough(tmp_path: Path, changed: dict[str, bytes], kept: bool) -> None:
    folder = program(tmp_path, {"k/k.so": LIBRARY, "program.bc": BITCODE, **changed})
    assert bool(quarantine_damaged(tmp_path)) != kept
    assert folder.exists() == kept


def test_file_being_written_is_left_alone(tmp_path: Path) -> None:
    folder = program(tmp_path, {"k/k.so": LIBRARY[:100]}, age=0)
    assert quarantine_damaged(tmp_path) == []
    assert folder.exists()


class Forgetful(OpenCLDevice):
    """A device whose first program lacks its kernel."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def _program(self, source: str) -> SimpleNamespace:
        self.built.append(source)
        return SimpleNamespace(kernel_names="" if len(self.built) == 1 else source)


def test_program_without_kernels_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = program(tmp_path, {"k/k.so": LIBRARY})
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path))
    device = Forgetful()
    assert device._program_with_kernels("k", ["k"]).kernel_names == "k"
    assert device.built == ["k", "k"]
    assert not folder.exists()


def python(code: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a program with a cache of its own."""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = os.environ | {"CUTS_CACHE_DIR": str(cache), "PYTHONPATH": path}
    environment.pop("POCL_CACHE_DIR", None)
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda content: content[: len(content) // 8 * 4],
    "empty": lambda content: b"",
    "overwritten": lambda content: bytes(range(256)) * (len(content) // 256),
}


@needs_opencl
@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_set_aside_and_built_anew(tmp_path: Path, damage: str) -> None:
    tmp_path.chmod(0o700)
    assert python(RUN, tmp_path).returncode == 0
    files = [path for path in (tmp_path / "pocl").rglob("*") if path.suffix in (".so", ".bc")]
    if not files and choose_device().platform.name != "Portable Computing Language":
        pytest.skip(f"{choose_device().text} keeps nothing that is known here")
    assert files
    for path in files:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        os.utime(path, (time.time() - 60,) * 2)
    for _ in range(2):
        result = python(RUN, tmp_path)
        assert (result.returncode, result.stderr) == (0, "")
    assert list((tmp_path / "pocl").glob("damaged-*"))


@needs_opencl
def test_forked_process_reports_disabled_opencl(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    result = python(FORK, tmp_path)
    assert result.returncode == 0, result.stderr
