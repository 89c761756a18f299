"""Compilation of CUDA sources without a GPU.

Figures, warnings, failures, time limits, the cache.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from attrs import evolve
from cuts.backends.compiler_diagnostics import compile_error, first_fault
from cuts.backends.compilers import cubins as cuda_compile
from cuts.backends.compilers.cubins import Cubin, Toolchain, compile_kernel, compile_kernels, find_toolchain
from cuts.backends.compilers.nvcc import run_nvcc
from cuts.backends.compilers.nvrtc import nvrtc_options
from cuts.ir.compiled import Argument, KernelFunction
from cuts.ir.errors import BackendError, UsageError
from cuts.ir.types import DType
from cuts.store import digest, digest_parts
from cuts.tests.needs import needs_toolchain

SOURCE = """extern "C" __global__ void __launch_bounds__(64) k(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float s[64];
  int i = blockIdx.x * 64 + threadIdx.x;
  s[threadIdx.x] = x[i];
  __syncthreads();
  y[i] = s[63 - threadIdx.x];
}
"""
KERNEL = KernelFunction(
    "k",
    "cuda",
    SOURCE,
    (1, 1, 1),
    (64, 1, 1),
    (Argument("x", DType.F32, False), Argument("y", DType.F32, True)),
    shared_bytes=256,
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache."""
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path / "cache"))


@needs_toolchain
def test_a_cubin_comes_with_its_figures() -> None:
    cubin = compile_kernel(KERNEL, "sm_90")
    assert cubin.code.startswith(b"\x7fELF")
    assert 4 <= cubin.registers <= 64
    assert cubin.shared_bytes == 256
    assert (cubin.spill_bytes, cubin.warnings) == (0, ())


@pytest.mark.parametrize("known", [True, False])
def test_option_refused_by_older_compiler_is_left_out(known: bool) -> None:
    class Compiler:
        def nvrtcCreateProgram(self, *arguments: object) -> tuple[int, str]:
            return 0, "program"

        def nvrtcCompileProgram(self, program: str, count: int, options: list[bytes]) -> tuple[int]:
            return (0 if known else 5,)

        def nvrtcDestroyProgram(self, program: str) -> None: ...

    assert (b"--minimal" in nvrtc_options(Compiler())) is known


@needs_toolchain
@pytest.mark.parametrize("name", [tool.name for tool in cuda_compile.toolchains()])
def test_every_compiler_here_knows_the_macros_of_math(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_CUDA_COMPILER", name)
    source = SOURCE.replace("= s[", "= fmaxf(-INFINITY, NAN) + s[")
    assert compile_kernel(evolve(KERNEL, source=source), "sm_90").warnings == ()


@needs_toolchain
def test_warnings_surface() -> None:
    kernel = evolve(KERNEL, source=SOURCE.replace("__syncthreads", "int idle = 3; __syncthreads"))
    assert any("idle" in line for line in compile_kernel(kernel, "sm_90").warnings)


@needs_toolchain
def test_failure_shows_first_fault_and_source_path(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        compile_kernel(evolve(KERNEL, source=SOURCE.replace("s[63", "q[63")), "sm_90")
    text, files = str(caught.value), tmp_path / "cache" / "refused"
    assert len(text.splitlines()) == 1
    assert '"q" is undefined' in text
    assert f"its source is {files / 'k.cu'}, the whole log is beside it" in text
    assert "q[63" in (files / "k.cu").read_text()
    assert '"q" is undefined' in (files / "k.log").read_text()


def test_only_the_newest_refused_sources_are_kept(tmp_path: Path) -> None:
    for number in range(40):
        compile_error(evolve(KERNEL, name=f"k{number}"), "sm_90", "source", "x.cu(3): error: no")
    names = sorted(path.name for path in (tmp_path / "cache" / "refused").iterdir())
    assert len(names) == 64
    assert {"k39.cu", "k39.log"} <= set(names)


def test_refused_source_is_kept_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_NO_CACHE", "1")
    error = compile_error(KERNEL, "sm_90", "the source", "x.cu(3): error: no")
    assert error.message == f"kernel {KERNEL.name} does not compile for sm_90: x.cu(3): error: no"
    path = Path(error.hint.removeprefix("its source is ").partition(",")[0])
    assert path.read_text() == "the source"
    shutil.rmtree(path.parent)


@pytest.mark.parametrize(
    ("log", "fault"),
    [
        ("note: a\nk.cu(3): error: b\nk.cu(4): error: c", "k.cu(3): error: b"),
        ("\n  nothing to say\n", "nothing to say"),
        ("", "the compiler does not say why"),
        ("ptxas fatal   : no\nk.cu: Error: x", "k.cu: Error: x"),
    ],
)
def test_the_first_fault_of_a_log(log: str, fault: str) -> None:
    assert first_fault(log) == fault


def fake(log: str = "", code: bytes = b"cubin") -> tuple[Toolchain, list[str]]:
    """Return a compiler that prints `log`, and the list of its requests."""
    calls: list[str] = []

    def run(source: str, arch: str, timeout: float) -> tuple[bytes, str]:
        calls.append(source)
        return code, log

    return Toolchain("fake", "1", run), calls


def use(monkeypatch: pytest.MonkeyPatch, *tools: Toolchain) -> None:
    """Let these be the compilers of this machine."""
    monkeypatch.setattr(cuda_compile, "_find_toolchains", lambda: iter(tools))


def test_serialised_products_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for sm_90 may use the instructions of exactly that architecture."""
    remark = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized"
    archs: list[str] = []

    def run(source: str, arch: str, timeout: float) -> tuple[bytes, str]:
        archs.append(arch)
        return b"cubin", remark if "wgmma" in source else ""

    use(monkeypatch, Toolchain("fake", "1", run))
    assert compile_kernel(evolve(KERNEL, source="wgmma"), "sm_90").serialised == remark
    assert compile_kernel(KERNEL, "sm_89").serialised == ""
    assert archs == ["sm_90a", "sm_89"]


def test_logs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = """ptxas info    : Compiling entry function 'k' for 'sm_90'
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 24 bytes cumulative stack size, 4096 bytes smem
ptxas warning : Registers are spilled to local memory in function 'k'
Remark: The warnings can be suppressed with "-diag-suppress <warning-number>"
"""
    use(monkeypatch, fake(log)[0])
    warning = "ptxas warning : Registers are spilled to local memory in function 'k'"
    assert compile_kernel(KERNEL, "sm_90") == Cubin(b"cubin", 255, 4096, 36, 24, (warning,))


def test_cubin_of_an_earlier_version_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of earlier versions are a digest, the report, and the code."""
    tool = Toolchain("nvrtc", "13.0", lambda *_: pytest.fail("it is compiled again"))
    monkeypatch.setattr("cuts.backends.compilers.cubins.find_toolchain", lambda arch: tool)
    cubin = Cubin(b"\x7fELF\n", 12, 256, warnings=("idle",))
    content = json.dumps(cubin.report).encode() + b"\n" + cubin.code
    folder = tmp_path / "cache" / "cubin"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "cache").chmod(0o700)
    name = digest_parts(["cubin 2", "nvrtc", "13.0", "sm_90", KERNEL.source])
    (folder / name).write_bytes(digest(content).encode() + content)
    assert [compile_kernel(KERNEL, "sm_90") for _ in range(2)] == [cubin, cubin]
    assert not list(folder.iterdir()), "it is an entry of the store now"


def test_equal_sources_are_compiled_once_and_then_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    tool, calls = fake("ptxas warning : w")
    use(monkeypatch, tool)
    first = compile_kernels([KERNEL, KERNEL, evolve(KERNEL, source=SOURCE + " ")], "sm_90")
    assert len(calls) == 2
    assert first[0] == first[1]
    assert compile_kernels([KERNEL], "sm_90") == first[:1]
    assert len(calls) == 2
    compile_kernel(KERNEL, "sm_70")
    assert len(calls) == 3


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    with pytest.raises(BackendError, match="neither NVRTC nor nvcc was found; install the wheels"):
        compile_kernel(KERNEL, "sm_90")


def test_a_compiler_is_chosen_by_its_architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    new = evolve(fake()[0], name="new", architectures=lambda: (75, 90))
    old = evolve(fake()[0], name="old", architectures=lambda: (50, 70))
    use(monkeypatch, new, old)
    assert [find_toolchain(arch).name for arch in ("", "sm_90a", "sm_70")] == ["new", "new", "old"]
    use(monkeypatch, new)
    with pytest.raises(BackendError, match="for sm_70: new 1 compiles for sm_75 to sm_90; install the wheel"):
        compile_kernel(KERNEL, "sm_70")
    with pytest.raises(BackendError, match="newer versions of the wheels nvidia-cuda-nvrtc"):
        compile_kernel(KERNEL, "sm_120")


def test_the_environment_chooses_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    nvrtc, nvcc = (evolve(fake()[0], name=name) for name in ("nvrtc", "nvcc"))
    use(monkeypatch, nvrtc, nvcc)
    assert find_toolchain().name == "nvrtc"
    monkeypatch.setenv("CUTS_CUDA_COMPILER", "nvcc")
    assert find_toolchain().name == "nvcc"
    monkeypatch.setenv("CUTS_CUDA_COMPILER", "gcc")
    with pytest.raises(UsageError, match="expected nvrtc or nvcc"):
        find_toolchain()


def test_nvcc_is_stopped_in_time(tmp_path: Path) -> None:
    slow = tmp_path / "nvcc"
    slow.write_text("#!/bin/sh\nsleep 60 & sleep 60\n")
    slow.chmod(0o755)
    with pytest.raises(Exception, match=r"stopped after 0\.2 seconds"):
        run_nvcc(str(slow), SOURCE, "sm_90", 0.2)
