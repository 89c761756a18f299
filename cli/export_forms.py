"""Forms of `cuts export`: a packed plan, alone or for an engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from attrs import evolve, frozen

from ..backends.native import SOURCE_FOLDER
from ..compile import CompiledPlan
from ..ir import DType, TensorType, UsageError, quote
from ..runtime import save_plan
from ..runtime.native import build_engine_library, write_packed

#: Suffix of a packed plan.
SUFFIX = ".cutsplan"
#: Name of the plan's file beside a library of tvm-ffi, and in a version's folder of a Triton repository.
PLAN_FILE = f"model{SUFFIX}"
#: Triton's names of element types.
_TRITON_TYPES = {
    DType.BOOL: "BOOL", DType.U8: "UINT8", DType.U16: "UINT16", DType.U32: "UINT32", DType.U64: "UINT64",
    DType.I8: "INT8", DType.I16: "INT16", DType.I32: "INT32", DType.I64: "INT64", DType.F16: "FP16",
    DType.BF16: "BF16", DType.F32: "FP32", DType.F64: "FP64",
}  # fmt: skip


@frozen
class ExportForm:
    """Form of an exported plan.

    `suffix` follows the plan's name in the default path. `write` takes plan, path and name, and returns its files.
    """

    summary: str
    suffix: str
    write: Callable[[CompiledPlan, Path, str], list[Path]]


def _write_file(plan: CompiledPlan, path: Path, stem: str) -> list[Path]:
    write_packed(plan.plan, path)
    return [path]


def _write_sources(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    path = _make_folder(folder) / f"{stem}{SUFFIX}"
    write_packed(plan.plan, path)
    return [path, *(Path(shutil.copy(each, folder / each.name)) for each in sorted(SOURCE_FOLDER.glob("*.[ch]")))]


def _write_onnxruntime(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    from ..frontends.onnx import plan_model  # onnx is optional

    path, model = _make_folder(folder) / f"{stem}{SUFFIX}", folder / f"{stem}.onnx"
    write_packed(plan.plan, path)
    model.write_bytes(plan_model(plan.name, path.name, plan.inputs, plan.outputs).SerializeToString())
    return [model, path, build_engine_library("onnxruntime", folder)]


def _write_triton(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    path, description = _make_folder(folder / "1") / PLAN_FILE, folder / "config.pbtxt"
    text = _triton_description(plan, folder.name)
    write_packed(plan.plan, path)
    description.write_text(text, encoding="utf-8")
    return [description, path, build_engine_library("triton", folder)]


def _write_tvm_ffi(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    path = _make_folder(folder) / PLAN_FILE
    write_packed(plan.plan, path)
    return [path, build_engine_library("tvm_ffi", folder)]


def _triton_description(plan: CompiledPlan, name: str) -> str:
    """Return the configuration of a model without batching: shapes are those of the plan."""
    kind = "KIND_GPU" if plan.target.dialect == "cuda" else "KIND_CPU"
    lines = [f'name: "{name}"', 'backend: "cuts"', f'default_model_filename: "{PLAN_FILE}"', "max_batch_size: 0"]
    for role, types in (("input", plan.inputs), ("output", plan.outputs)):
        lines += [f"{role} [ {{ {_triton_tensor(each, type_)} }} ]" for each, type_ in types.items()]
    return "\n".join([*lines, f"instance_group [ {{ kind: {kind} }} ]", ""])


def _triton_tensor(name: str, type_: TensorType) -> str:
    dims = ", ".join(map(str, type_.shape))
    shape = f"dims: [ {dims} ]" if type_.shape else "dims: [ 1 ] reshape: { shape: [ ] }"
    return f'name: "{name}" data_type: TYPE_{_triton_type(name, type_)} {shape}'


def _triton_type(name: str, type_: TensorType) -> str:
    """Return Triton's name of an element type.

    Raises `UsageError` where it has none.
    """
    if type_.dtype not in _TRITON_TYPES:
        raise UsageError(f"Triton has no element type for {quote(name)}: {type_}")
    return _TRITON_TYPES[type_.dtype]


def _write_folder(plan: CompiledPlan, folder: Path, stem: str) -> list[Path]:
    """Write a plan's folder with binaries of this machine's device.

    PoCL compiles a kernel again for the geometry of its launches, so that a run comes first.
    """
    plan.run(plan.random_inputs())
    device = plan.session.device
    with device.current():
        made = zip(plan.plan.binaries, device.binaries(plan.plan.kernels), strict=True)
        save_plan(evolve(plan.plan, binaries=tuple(known or found for known, found in made)), folder)
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


#: Forms by the name of the option.
FORMS: Mapping[str, ExportForm] = {
    "file": ExportForm("one file, which libcuts_run and cuts.PackedPlan open", SUFFIX, _write_file),
    "folder": ExportForm("the plan with binaries for this machine's OpenCL device", "-binaries.plan", _write_folder),
    "c": ExportForm("a folder with it and the library's sources", "-c", _write_sources),
    "onnxruntime": ExportForm("a model of one node for ONNX Runtime", "-onnxruntime", _write_onnxruntime),
    "triton": ExportForm("a model of Triton Inference Server, with its backend", "-triton", _write_triton),
    "tvm-ffi": ExportForm("a module with the function run for tvm-ffi", "-tvm-ffi", _write_tvm_ffi),
}
