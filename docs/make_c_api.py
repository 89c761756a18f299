"""Writes `docs/reference/c_interface.md` from the header of the runner: `python docs/make_c_api.py`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

ROOT = Path(__file__).parents[1]
HEADER = ROOT / "backends" / "native" / "source" / "cuts_run.h"
DOCUMENT = Path(__file__).parent / "reference" / "c_interface.md"
WIDTH = 120
HEAD = """# C interface

Written by `docs/make_c_api.py` from `backends/native/source/cuts_run.h`. `libcuts_run` runs [packed
plans](plan_format.md#packed-plans) without Python, on CUDA or OpenCL:

```sh
cuts export model.plan -o model.cutsplan          # the plan as one file
python -m cuts.runtime.native build               # build/libcuts_run.so; or `cuts export model.plan --as c`
```

The sources are C11 and need no header of a driver; any C compiler builds them:

```sh
cc -std=c11 -D_GNU_SOURCE -O2 -fPIC -fvisibility=hidden -fno-strict-aliasing -pthread -shared *.c -ldl -o libcuts_run.so
```

A wheel for a platform has the library, `cuts/backends/native/libcuts_run.so`; it needs the C library of the machine
that built the wheel, or a newer one. Programs in `examples/native/` use the library from C, C++ and Rust; on a GPU
`torch.compile` needs the library, and sessions in Python without it launch kernel by kernel.

* **Memory.** A plan has its constants on the device once; each session has the memory of one run, and state. Kernels
  read inputs and write outputs in the caller's memory, which must be dense, begin at a multiple of 16 bytes, and not
  overlap. A tensor that is part of another one is copied.
* **State** stays on the device; from 1 MiB its present and next value take turns between two blocks.
* **Threads.** Sessions of a plan run concurrently; runs of one session exclude each other. Each thread has its error.
* **CUDA.** The first run records a graph; later runs launch it, with new addresses where memory moved. The library uses
  the device's primary context, as PyTorch and the CUDA runtime do.
* **Host memory.** `cuts_session_run_host` takes host memory on any device; on a GPU the session copies it.
* **OpenCL** is opened by the system's loader, `libOpenCL.so.1`. The one in PyOpenCL's wheel (`cuts_options.library`)
  works in processes that import PyOpenCL; in others, `PYOPENCL_HOME` is its folder, and `LD_LIBRARY_PATH` has `.libs`.
* **Limits.** Linux on little-endian 64-bit machines. Plans that check indices, plans in stages or for ranges of sizes,
  and routines without a generated kernel cannot be exported. Results that are the same in each run are no tensors and
  have no outputs.

## Engines

`cuts export PLAN --as ENGINE` writes a folder with a library that contains the runner, built by the C compiler of the
machine.

* **ONNX Runtime** (`onnxruntime`, from 1.16): a model of one node, `cuts.Plan`, for `model.onnx` or a part of a larger
  model, and `libcuts_onnxruntime.so`, which `SessionOptions.register_custom_ops_library` loads. The attribute `file`
  names the plan beside the library; `ordinal`, `library` and `platform` choose a device as `cuts_options` do. The
  provider of processors copies host memory; that of CUDA gives device memory and its stream. Runs of a node exclude
  each other.
* **Triton Inference Server** (`triton`): a folder for a model repository, with `config.pbtxt`, the plan, and the
  backend `libtriton_cuts.so`. Instances of a model on one GPU share its constants. A request is one run in host memory;
  there is no batching, as shapes are those of the plan.
* **tvm-ffi** (`tvm-ffi`): `tvm_ffi.load_module("libcuts_tvm_ffi.so").run(x, y)` takes the inputs and then the outputs,
  tensors of the plan's kind of device, and orders the run on the current stream. Each GPU has one session.
* **Python**: [`cuts.PackedPlan`](python_api.md) opens a packed plan through the library.
"""
_ENTRY = re.compile(r"/\*\* ((?:.|\n)*?) \*/\n((?:.+\n)+)")


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the description and the declaration of each documented name."""
    for comment, declaration in _ENTRY.findall(text):
        yield " ".join(line.strip(" *") for line in comment.splitlines()), declaration


def name_of(declaration: str) -> str:
    """Return the name that a declaration introduces."""
    if declaration.startswith("#define"):
        return declaration.split()[1]
    if declaration.startswith("typedef"):
        return declaration.rstrip().rstrip(";").split()[-1]
    return str(re.findall(r"(cuts_\w+)\(", declaration)[0])


def document() -> str:
    """Return the page."""
    parts = [HEAD]
    for description, declaration in entries(HEADER.read_text(encoding="utf-8")):
        words = "\n".join(wrap(description, WIDTH, break_long_words=False, break_on_hyphens=False))
        shown = declaration.replace("CUTS_API ", "").rstrip()
        parts.append(f"## `{name_of(declaration)}`\n\n{words}\n\n```c\n{shown}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
