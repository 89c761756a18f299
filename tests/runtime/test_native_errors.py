"""Errors of the C library: files, tensors, and layouts of its structs."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from ctypes import POINTER, byref, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.backends.native import LAYOUTS, SOURCE_FOLDER, build_library, compile_c, with_header
from cuts.runtime.native import pack_plan
from cuts.tests.needs import needs_c_compiler, needs_opencl

from . import native_runner
from .handmade import COLUMNS, ROWS, example_plan, random_x
from .native_runner import (
    NativeError,
    NativePlan,
    OptionsStruct,
    TensorStruct,
    aligned_copy,
    describe_only,
    open_library,
    tensor_list,
)

pytestmark = [pytest.mark.as_users_build, needs_c_compiler()]
HEADER_BYTES = 64
#: Places of fields of the header.
VERSION_BYTE, DIGEST_BYTE = 8, 24


@pytest.fixture(scope="module")
def content() -> bytes:
    return pack_plan(example_plan())


def status_of(content: bytes | Path) -> tuple[str, str]:
    """Return status and text of a file that does not open."""
    with pytest.raises(NativeError) as caught:
        NativePlan(content, describe_only())
    return caught.value.status, caught.value.text


def test_a_damaged_file_is_refused(content: bytes, tmp_path: Path) -> None:
    assert status_of(content[:-1])[0] == "CUTS_ERROR_FORMAT"
    assert "the file is truncated" in status_of(content[:-64])[1]
    assert status_of(content[:10]) == (
        "CUTS_ERROR_FORMAT",
        "expected a packed plan, found another file: write it with 'cuts export'",
    )
    for place in (DIGEST_BYTE, len(content) - 1, HEADER_BYTES + 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        assert status_of(bytes(damaged))[0] == "CUTS_ERROR_DIGEST"
    later = content[:VERSION_BYTE] + b"\3" + content[VERSION_BYTE + 1 :]
    assert status_of(later) == (
        "CUTS_ERROR_VERSION",
        "the plan has format version 3, this library reads 2: write it again",
    )
    assert status_of(tmp_path / "none") == (
        "CUTS_ERROR_FILE",
        f"cannot read {tmp_path}/none: No such file or directory",
    )
    assert status_of(tmp_path) == ("CUTS_ERROR_FILE", f"cannot read {tmp_path}: expected a file")
    (tmp_path / "empty").write_bytes(b"")
    assert status_of(tmp_path / "empty")[0] == "CUTS_ERROR_FORMAT"


def test_a_contradiction_is_refused(content: bytes) -> None:
    """A wrong number with a right digest is an error or harmless.

    No number of any record leads to a crash.
    """
    rest = content[HEADER_BYTES:]
    data = LAYOUTS["data"].kind
    end = next(offset for kind, offset, _ in sections(content) if kind == data) - HEADER_BYTES
    statuses = set()
    for place in range(0, end, 4):
        changed = with_header(rest[:place] + b"\xff\xff\xff\x7f" + rest[place + 4 :])
        try:
            NativePlan(changed, describe_only()).close()
            statuses.add("CUTS_OK")
        except NativeError as error:
            statuses.add(error.status)
    assert statuses == {"CUTS_OK", "CUTS_ERROR_FORMAT"}


def sections(content: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield kind, offset and bytes of each section."""
    for number in range(len(LAYOUTS)):
        entry = content[HEADER_BYTES + 32 * number :][:32]
        kind, _, offset, nbytes = (int.from_bytes(entry[a:b], "little") for a, b in ((0, 4), (4, 8), (8, 16), (16, 24)))
        yield kind, offset, nbytes


def test_a_plan_describes_itself(content: bytes) -> None:
    native = NativePlan(content, describe_only())
    info = native.info
    assert (info.name, info.dialect, info.inputs, info.outputs, info.states) == (b"hand-made", b"opencl", 1, 2, 0)
    assert (info.kernels, info.launches) == (2, 3)
    assert {name: shape for name, (_, shape) in native.tensors(1).items()} == {
        "y": (ROWS, 2 * COLUMNS), "left": (ROWS, COLUMNS),
    }  # fmt: skip
    with pytest.raises(NativeError, match="CUTS_ERROR_ARGUMENT: the plan was opened without a device"):
        native.new_session()
    status = native.library.cuts_plan_tensor(native.plan, 2, 0, byref(native_runner.TensorInfoStruct()))
    with pytest.raises(NativeError, match="the plan has no tensor 0 of role 2"):
        native.check(status)
    native.close()


def change(**values: Any) -> Callable[[TensorStruct], None]:
    """Return a function that sets fields of a tensor."""

    def apply(tensor: TensorStruct) -> None:
        for name, value in values.items():
            setattr(tensor, name, value)

    return apply


def widen(tensor: TensorStruct) -> None:
    tensor.shape = ctypes.cast((c_int64 * 2)(ROWS, COLUMNS + 1), POINTER(c_int64))


def transpose(tensor: TensorStruct) -> None:
    tensor.strides = ctypes.cast((c_int64 * 2)(1, ROWS), POINTER(c_int64))


@needs_opencl
@pytest.mark.parametrize(
    ("apply", "text"),
    [
        (widen, r"input 'x': expected shape \[4, 8\], found \[4, 9\]"),
        (change(ndim=1), r"input 'x': expected shape \[4, 8\], found \[4\]"),
        (transpose, "input 'x' has stride 4 at axis 1, expected 1: pass a dense copy"),
        (change(data=None), "input 'x' is missing: its address is null"),
        (change(byte_offset=4), "input 'x' begins at .*, expected a multiple of 16"),
        (change(device=native_runner.DeviceStruct(2, 0)), r"a tensor lies on a device of DLPack's type 2, expected 1"),
        (
            change(dtype=native_runner.DTypeStruct(0, 32, 1)),
            "input 'x': expected elements of DLPack's code 2 with 32 bits, found 0 with 32",
        ),
    ],
)
def test_a_wrong_tensor_is_refused(content: bytes, apply: Any, text: str) -> None:
    native = NativePlan(content)
    x, y, left = (aligned_copy(np.zeros(shape, np.float32)) for shape in ((4, 8), (4, 16), (4, 8)))
    inputs, outputs = tensor_list([x]), tensor_list([y, left])
    apply(inputs[0])
    with pytest.raises(NativeError, match=f"CUTS_ERROR_TENSOR: {text}"):
        native.check(native.library.cuts_session_run(native.session, inputs, 1, outputs, 2, c_void_p()))
    assert np.all(native.run({"x": random_x()})["y"] != 0)  # the session still runs
    native.close()


@needs_opencl
def test_missing_tensors_and_small_buffers_are_refused(content: bytes) -> None:
    native = NativePlan(content)
    x, y, left = (aligned_copy(np.ones(shape, np.float32)) for shape in ((4, 8), (4, 16), (4, 8)))
    run = native.library.cuts_session_run
    with pytest.raises(NativeError, match="CUTS_ERROR_TENSOR: expected 1 inputs, found 0"):
        native.check(run(native.session, tensor_list([]), 0, tensor_list([y, left]), 2, c_void_p()))
    with pytest.raises(NativeError, match="CUTS_ERROR_TENSOR: expected 2 outputs, found 1"):
        native.check(run(native.session, tensor_list([x]), 1, tensor_list([y]), 1, c_void_p()))
    given = (c_void_p * 1)(x.ctypes.data), (c_uint64 * 1)(x.nbytes), 1
    results = (c_void_p * 2)(y.ctypes.data, left.ctypes.data)
    small = (*given, results, (c_uint64 * 2)(y.nbytes - 1, left.nbytes), 2, c_void_p())
    with pytest.raises(NativeError, match="CUTS_ERROR_TENSOR: output 'y' has 255 bytes, expected 256"):
        native.check(native.library.cuts_session_run_pointers(native.session, *small))
    whole = (*given, results, (c_uint64 * 2)(y.nbytes, left.nbytes), 2, c_void_p())
    native.check(native.library.cuts_session_run_pointers(native.session, *whole))
    assert np.all(y[:, COLUMNS:] == 2)
    native.close()


def test_a_missing_driver_is_refused(content: bytes) -> None:
    options = OptionsStruct(ctypes.sizeof(OptionsStruct), 0, b"libnone.so")
    with pytest.raises(NativeError, match=r"CUTS_ERROR_DRIVER: the driver cannot be opened: libnone\.so"):
        NativePlan(content, options)
    with pytest.raises(NativeError, match="CUTS_ERROR_ARGUMENT: there is no device -2"):
        NativePlan(content, OptionsStruct(ctypes.sizeof(OptionsStruct), -2))
    with pytest.raises(NativeError, match=r"CUTS_ERROR_ARGUMENT: cuts_options\.size is 0"):
        NativePlan(content, OptionsStruct(0, 0))


def test_the_library_is_small_and_hides_its_names(tmp_path: Path) -> None:
    path = build_library(tmp_path)
    assert path.stat().st_size <= 500_000
    header = (SOURCE_FOLDER / "cuts_run.h").read_text()
    declared = set(re.findall(r"^CUTS_API .*?(cuts_\w+)\(", header, flags=re.MULTILINE))
    names = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True).stdout
    assert declared == set(re.findall(r" T (\w+)", names))
    assert open_library(path).cuts_run_version() == int(re.findall(r"CUTS_RUN_VERSION (\d+)", header)[0])


def test_layouts_are_those_of_the_structs(tmp_path: Path) -> None:
    """Sizes of records and places of fields are equal."""
    lines = ['#include "plan_file.h"']
    for name, layout in LAYOUTS.items():
        struct = {"number": "int64_t", "text": "char", "data": "uint8_t"}.get(name, f"{name}_record")
        lines.append(f'_Static_assert(sizeof({struct}) == {layout.struct.size}, "{name}");')
    for struct in ("Device", "DType", "Tensor", "TensorInfo", "PlanInfo", "Options"):
        python = getattr(native_runner, f"{struct}Struct")
        name = "cuts_" + re.sub(r"(?<=[a-z])(?=[A-Z])", "_", struct.replace("DT", "Dt")).lower()
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(python)}, "{name}");')
        for field, *_ in python._fields_:
            place = getattr(python, field).offset
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {place}, "{name}.{field}");')
    source = tmp_path / "layouts.c"
    source.write_text("\n".join([*lines, "int main(void) { return 0; }\n"]))
    compile_c(tmp_path / "layouts", [source], ["-Wall", "-Werror"])


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_sources_have_no_warnings(compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CC", compiler)
    build_library(tmp_path, ["-Wall", "-Wextra", "-Wconversion", "-Wno-sign-conversion", "-pedantic", "-Werror"])
