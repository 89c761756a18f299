"""Packed plans in engines: ONNX Runtime, and Triton's interface for backends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import cuts
import numpy as np
import pytest
from cuts.backends.native import SOURCE_FOLDER, compile_c, library_sources
from cuts.backends.opencl import opencl_library
from cuts.cli import main
from cuts.compile import CompiledPlan
from cuts.ir import Array
from cuts.runtime.native import ENGINE_FOLDER
from cuts.tests.needs import needs_c_compiler, needs_opencl

pytestmark = [pytest.mark.as_users_build, needs_c_compiler()]
EXAMPLES = Path(__file__).parents[2] / "examples"
C_FOLDER = Path(__file__).parent / "native_c"
#: Runs a module of tvm-ffi on arrays of files, and on a number.
TVM_PROGRAM = """
import sys
import numpy as np
import pyopencl
import tvm_ffi

pyopencl.get_platforms()  # it sets the environment of its library
module, end = tvm_ffi.load_module(sys.argv[1]), sys.argv.index("--")


def aligned(value):
    whole = np.zeros(value.nbytes + 64, np.uint8)
    start = -whole.ctypes.data % 64
    copy = whole[start : start + value.nbytes].view(value.dtype).reshape(value.shape)
    copy[...] = value
    return copy


given, right = np.load("inputs.npz"), np.load("outputs.npz")
inputs = [aligned(given[name]) for name in sys.argv[2:end]]
outputs = [aligned(np.zeros_like(right[name])) for name in sys.argv[end + 1 :]]
module.run(*map(tvm_ffi.from_dlpack, inputs + outputs))
print(all(a.tobytes() == right[name].tobytes() for name, a in zip(sys.argv[end + 1 :], outputs)))
try:
    module.run(1)
except TypeError as error:
    print("TypeError", error)
"""
#: Triton's number of f32.
FP32 = 11


@pytest.fixture(scope="module")
def plan() -> CompiledPlan:
    return cuts.build(str(EXAMPLES / "perceptron.json"), "opencl")


@pytest.fixture(scope="module")
def inputs(plan: CompiledPlan) -> Mapping[str, Array]:
    return plan.random_inputs(seed=4)


@pytest.fixture(scope="module")
def right(plan: CompiledPlan, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
    return plan.run(inputs)


def export(plan: CompiledPlan, folder: Path, form: str) -> Path:
    """Return the folder of an exported plan."""
    plan.save(folder / "model.plan")
    assert main(["export", str(folder / "model.plan"), "--as", form, "-o", str(folder / "model")]) == 0
    return folder / "model"


@needs_opencl
def test_onnx_runtime_computes_the_same_bits(
    plan: CompiledPlan, inputs: Mapping[str, Array], right: Mapping[str, Array], tmp_path: Path
) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    folder = export(plan, tmp_path, "onnxruntime")
    model = onnx.load(folder / "model.onnx")
    if library := opencl_library():
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("library", library))
    options = runtime.SessionOptions()
    options.register_custom_ops_library(str(folder / "libcuts_onnxruntime.so"))
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    for _ in range(2):
        found = session.run(list(right), dict(inputs))
        assert [array.tobytes() for array in found] == [array.tobytes() for array in right.values()]
    (attribute,) = (each for each in model.graph.node[0].attribute if each.name == "file")
    attribute.s = b"none.cutsplan"
    with pytest.raises(Exception, match=r"cannot read .*none\.cutsplan: No such file"):
        runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@needs_opencl
def test_onnx_runtime_refuses_other_shapes(plan: CompiledPlan, inputs: Mapping[str, Array], tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    folder = export(plan, tmp_path, "onnxruntime")
    model = onnx.load(folder / "model.onnx")
    if library := opencl_library():
        model.graph.node[0].attribute.append(onnx.helper.make_attribute("library", library))
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_param = "any"
    options = runtime.SessionOptions()
    options.register_custom_ops_library(str(folder / "libcuts_onnxruntime.so"))
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = model.graph.input[0].name
    with pytest.raises(Exception, match=f"input '{name}' has another type or shape than that of plan"):
        session.run(None, {**inputs, name: np.zeros((3, 3), np.float32)})


@needs_opencl
def test_tvm_ffi_computes_the_same_bits(
    plan: CompiledPlan, inputs: Mapping[str, Array], right: Mapping[str, Array], tmp_path: Path
) -> None:
    pytest.importorskip("tvm_ffi")
    own = opencl_library()
    if own:
        (tmp_path / "libOpenCL.so.1").symlink_to(own)
    folder = export(plan, tmp_path, "tvm-ffi")
    program = tmp_path / "run.py"
    program.write_text(TVM_PROGRAM, encoding="utf-8")
    np.savez(tmp_path / "inputs.npz", **inputs)
    np.savez(tmp_path / "outputs.npz", **right)
    folders = [str(tmp_path), *([str(Path(own).parent)] if own else [])]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    command = [sys.executable, program, folder / "libcuts_tvm_ffi.so", *inputs, "--", *right]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\nTypeError expected tensors: the inputs of the plan, then its outputs\n"


def serve(folder: Path, model: Path, inputs: Mapping[str, Array], outputs: list[str]) -> str:
    """Run one request on the server of tests and return its text."""
    server = folder / "server"
    compile_c(server, [C_FOLDER / "fake_triton.c"], ["-rdynamic", f"-I{ENGINE_FOLDER}"])
    for name, value in inputs.items():
        (folder / f"{name}.bin").write_bytes(value.tobytes())
    own = opencl_library()
    if own:
        (folder / "libOpenCL.so.1").symlink_to(own)
    folders = [str(folder), *([str(Path(own).parent)] if own else [])]
    words = [f"{name}:{FP32}:{value.nbytes}" for name, value in inputs.items()]
    command = [server, model / "libtriton_cuts.so", model, folder, *words, "--", *outputs]
    environment = os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(folders)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


@needs_opencl
def test_a_triton_backend_computes_the_same_bits(
    plan: CompiledPlan, inputs: Mapping[str, Array], right: Mapping[str, Array], tmp_path: Path
) -> None:
    model = export(plan, tmp_path, "triton")
    dense = {name: np.ascontiguousarray(value) for name, value in inputs.items()}
    assert serve(tmp_path, model, dense, list(right)) == "released 1 reported 1 live errors 0\n"
    for name, value in right.items():
        assert (tmp_path / f"{name}.bin").read_bytes() == value.tobytes(), name
    text = (model / "config.pbtxt").read_text(encoding="utf-8")
    assert text.startswith('name: "model"\nbackend: "cuts"\n') and "KIND_CPU" in text
    for name, type_ in plan.inputs.items():
        dims = ", ".join(map(str, type_.shape))
        assert f'input [ {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ]' in text


@needs_opencl
def test_a_triton_request_may_leave_out_outputs(
    plan: CompiledPlan, inputs: Mapping[str, Array], tmp_path: Path
) -> None:
    model = export(plan, tmp_path, "triton")
    dense = {name: np.ascontiguousarray(value) for name, value in inputs.items()}
    assert serve(tmp_path, model, dense, []) == "released 1 reported 1 live errors 0\n"


@needs_opencl
def test_a_triton_request_with_errors_is_answered(
    plan: CompiledPlan, inputs: Mapping[str, Array], tmp_path: Path
) -> None:
    model = export(plan, tmp_path, "triton")
    name, *others = inputs
    short = {each: np.ascontiguousarray(inputs[each]) for each in others} | {name: np.zeros(1, np.float32)}
    assert f"3: '{name}' has another type or size than the plan's\n" in serve(tmp_path, model, short, [])


@needs_opencl
def test_a_triton_model_without_its_plan_is_refused(plan: CompiledPlan, tmp_path: Path) -> None:
    model = export(plan, tmp_path, "triton")
    (model / "1" / "model.cutsplan").unlink()
    assert re.search(r"1: cannot read .*/1/model\.cutsplan: No such file", serve(tmp_path, model, {}, []))


def test_the_triton_backend_fits_the_server_header(tmp_path: Path) -> None:
    """`CUTS_TRITON_INCLUDE` is the folder `include` of triton-inference-server/core."""
    root = Path(os.environ.get("CUTS_TRITON_INCLUDE", "/nothing"))
    headers = [root / f"triton/core/triton{name}.h" for name in ("server", "backend")]
    if not headers[0].is_file():
        pytest.skip("CUTS_TRITON_INCLUDE names no folder with Triton's headers")
    names = {n for path in headers for n in re.findall(r"^struct (TRITON\w+);", path.read_text("utf-8"), re.M)}
    types = "".join(f"typedef struct {name} {name};\n" for name in sorted(names))  # the header is written for C++
    (tmp_path / "header.h").write_text(f'#include <stdbool.h>\n{types}#include "triton/core/tritonbackend.h"\n')
    options = ["-shared", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}", f"-I{root}", f"-I{SOURCE_FOLDER}"]
    options += ['-DCUTS_TRITON_HEADER="header.h"']
    compile_c(tmp_path / "libtriton_cuts.so", [ENGINE_FOLDER / "triton.c", *library_sources()], options)
