"""The compiler nvcc, a program of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from .toolchain import RejectedSourceError, Toolchain


@cache
def find_nvcc() -> Toolchain | None:
    """Return nvcc, on PATH or in the folder of `CUDA_HOME` or `CUDA_PATH`."""
    folders = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    path = shutil.which("nvcc") or next(
        (hit for folder in folders if (hit := shutil.which("nvcc", path=f"{folder}/bin"))), None
    )
    if path is None:
        return None
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"V(\d[\d.]*)", text)
    return Toolchain(
        "nvcc",
        match.group(1) if match else "unknown",
        lambda source, arch, timeout: run_nvcc(path, source, arch, timeout),
        cache(lambda: _nvcc_architectures(path)),
    )


def _nvcc_architectures(path: str) -> tuple[int, ...]:
    """Return the compute capabilities that nvcc lists; none where it lists none."""
    try:
        text = subprocess.run([path, "--list-gpu-arch"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(map(int, re.findall(r"compute_(\d+)\b", text)))


def run_nvcc(path: str, source: str, arch: str, timeout: float) -> tuple[bytes, str]:
    """Return the cubin and the log of a source.

    Raises `RejectedSourceError` where it does not compile within `timeout` seconds.
    """
    with tempfile.TemporaryDirectory(prefix="cuts-") as folder:
        (Path(folder) / "kernel.cu").write_text(source, encoding="utf-8")
        command = [path, "-cubin", f"-arch={arch}", "-Xptxas", "-v", "-o", "kernel.cubin", "kernel.cu"]
        # A session of its own, because nvcc starts further programs that must end with it.
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            log, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            raise RejectedSourceError(f"nvcc was stopped after {timeout:g} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        if process.returncode:
            raise RejectedSourceError(log.strip())
        return (Path(folder) / "kernel.cubin").read_bytes(), log
