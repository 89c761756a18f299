"""Malformed models: rows of a document or file and its message."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuts.frontends.graph_json import graph_from_json, load_graph
from cuts.frontends.weights import write_weights
from cuts.ir.errors import CutsError, ErrorList

GOOD: dict[str, Any] = {
    "format": "cuts.graph", "version": 1, "name": "g",
    "inputs": [{"name": "x", "dtype": "f32", "shape": [2, 3]}],
    "constants": [{"name": "c", "dtype": "f32", "shape": [3], "data": [1, 2, 3]}],
    "nodes": [
        {"name": "n1", "op": "add", "inputs": ["x", "c"], "outputs": ["a"]},
        {"name": "n2", "op": "relu", "inputs": ["a"], "outputs": ["y"]},
    ],
    "types": {"y": {"dtype": "f32", "shape": [2, 3]}},
    "outputs": ["y"],
}  # fmt: skip


def replace_fields(**changes: Any) -> dict[str, Any]:
    """Return the good document with values replaced at paths such as `nodes__0__op`."""
    document = deepcopy(GOOD)
    for path, value in changes.items():
        *parents, last = [int(p) if p.isdigit() else p for p in path.split("__")]
        target: Any = document
        for parent in parents:
            target = target[parent]
        target[last] = value
    return document


def messages(call: Callable[[], object]) -> list[str]:
    with pytest.raises(CutsError) as caught:
        call()
    error = caught.value
    assert error.exit_code == 3
    return str(error).split("\n") if isinstance(error, ErrorList) else [str(error)]


ROWS = {
    "version": (replace_fields(version=2), "at $.version: expected 1, found 2"),
    "format": (replace_fields(format="onnx"), 'at $.format: expected "cuts.graph", found "onnx"'),
    "wrong kind": (replace_fields(nodes__1__op=5), "at $.nodes[1].op: expected a string, found 5"),
    "not a list": (replace_fields(outputs="y"), 'at $.outputs: expected a list, found "y"'),
    "a bool is no integer": (
        replace_fields(inputs__0__shape=[2, True]),
        "at $.inputs[0].shape[1]: expected an integer, found true",
    ),
    "unknown field": (replace_fields(nodes__0__attrs={}), 'at $.nodes[0]: unknown field "attrs"'),
    "mixed attribute": (
        replace_fields(nodes__0__attributes={"k": [1, "a"]}),
        "at $.nodes[0].attributes['k']: expected a list of integers, of numbers or of strings, found [1, 'a']",
    ),
    "nested attribute": (
        replace_fields(nodes__0__attributes={"k": {"a": 1}}),
        "at $.nodes[0].attributes['k']: expected a number, a string, true, false or a list of them, found {'a': 1}",
    ),
    "element type": (
        replace_fields(types__y__dtype="f8"),
        "at $.types['y'].dtype: expected an element type (f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, "
        "i8, u64, u32, u16, u8, bool), "
        'found "f8"',
    ),
    "unknown op": (replace_fields(nodes__1__op="relo"), "node 'n2' (relo): unknown op 'relo'; did you mean 'relu'"),
    "wrong shape": (
        replace_fields(types__y__shape=[3, 2]),
        "node 'n2' (relu): expected f32[2, 3] for output 'y', found f32[3, 2]",
    ),
    "misfit operands": (replace_fields(inputs__0__shape=[2, 4]), "node 'n1' (add): "),
    "unknown attribute": (
        replace_fields(nodes__1__attributes={"alpha": 1}),
        "node 'n2' (relu): op 'relu': unknown attribute 'alpha'",
    ),
    "negative extent": (
        replace_fields(inputs__0__shape=[-1, 3]),
        "value 'x': expected extents of at least 0, found [-1, 3]",
    ),
    "rank": (replace_fields(inputs__0__shape=[1] * 9), "value 'x': expected at most 8 axes, found 9"),
    "elements": (
        replace_fields(inputs__0__shape=[65536, 65536]),
        "value 'x': expected fewer than 2^31 elements, found 4294967296",
    ),
    "too few elements": (
        replace_fields(constants__0__data=[1, 2]),
        "constant 'c': expected a flat list of 3 elements for f32[3], found 2",
    ),
    "element kind": (
        replace_fields(constants__0__data=[1, True, 3]),
        "constant 'c': expected an element of type f32 at position 1, found true",
    ),
    "element range": (
        replace_fields(constants__0__dtype="u8", constants__0__data=[1, 2, 256]),
        "constant 'c': an element is out of the range of u8",
    ),
    "no data": (
        replace_fields(constants__0__data=None),
        "constant 'c' has no data here and the document names no weights file; set `data` or `weights`",
    ),
    "no folder": (
        replace_fields(constants__0__data=None, weights="w.safetensors"),
        "constant 'c' has no data here and the folder of its weights file is not given; set `data` or `weights`",
    ),
    "undefined value": (
        replace_fields(nodes__1__inputs=["b"]),
        "node 'n2' (relu) reads value 'b' that nothing defines",
    ),
    "undefined output": (replace_fields(outputs=["z"]), "output 'z' of the graph is a value that nothing defines"),
    "no outputs": (replace_fields(outputs=[]), "graph 'g' has no outputs; name at least one value to compute"),
    "output twice": (replace_fields(outputs=["y", "y"]), "output 'y' of the graph is listed 2 times"),
    "same node name": (
        replace_fields(nodes__1__name="n1"),
        "2 nodes are named 'n1'; give every node a name of its own",
    ),
    "defined twice": (
        replace_fields(nodes__1__outputs=["x"]),
        "value 'x' is defined 2 times: by the graph's inputs and by node 'n2'",
    ),
    "declared twice": (
        replace_fields(constants__0__name="x"),
        "value 'x' is declared 2 times among inputs and constants",
    ),
    "no results": (replace_fields(nodes__1__outputs=[]), "node 'n2' (relu) defines no value"),
    "result count": (replace_fields(nodes__1__outputs=["y", "z"]), "node 'n2' (relu): expected 1 outputs, found 2"),
    "type of nothing": (
        replace_fields(types__q={"dtype": "f32", "shape": [1]}),
        "value 'q' has a type but nothing defines it",
    ),
    "two types": (
        replace_fields(types__x={"dtype": "f32", "shape": [3, 2]}),
        "value 'x': expected f32[2, 3] as declared, found f32[3, 2] among the types",
    ),
    "cycle": (
        replace_fields(nodes__0__inputs=["x", "y"]),
        "nodes form a cycle: 'n1' -> 'n2' -> 'n1'; break the loop at one of these nodes",
    ),
    "half a character": (
        replace_fields(nodes__1__name="\ud800"),
        "name '\\ud800' is not text: it holds half of a surrogate pair",
    ),
    "control characters": (
        replace_fields(outputs=["a\nb"]),
        "output 'a\\u000ab' of the graph is a value that nothing defines",
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_malformed_document_is_explained(name: str) -> None:
    document, expected = ROWS[name]
    found = messages(lambda: graph_from_json(document))
    assert any(f"<json>: {expected}" in line for line in found), found


def test_the_good_document_is_good() -> None:
    assert graph_from_json(GOOD).outputs == ("y",)


def test_all_faults_are_reported_at_once() -> None:
    assert (
        len(messages(lambda: graph_from_json(replace_fields(nodes__0__op="ad", nodes__1__op="relo", outputs=["z"]))))
        == 3
    )
    assert len(messages(lambda: graph_from_json(replace_fields(nodes__0__op=1, nodes__1__op=2, name=3)))) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"format": ', '<json>:1:12: error: not JSON: expecting value\n   1 | {"format": \n     |            ^'),
        ("[" * 100_000, "<json>: not JSON that can be read: nested too deep"),
        ("[]", "<json>:1:1: error: at $: expected an object, found a list\n   1 | []\n     | ^^"),
        ("{}", "<json>:1:1: error: at $.format: this field is required"),
    ],
)
def test_what_is_no_document_is_explained(text: str, expected: str) -> None:
    assert "\n".join(messages(lambda: graph_from_json(text))).startswith(expected)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of a model with a weights file."""
    model = tmp_path / "model"
    model.mkdir()
    document = replace_fields(constants__0__data=None, weights="w.safetensors")
    (model / "g.json").write_text(json.dumps(document))
    write_weights(model / "w.safetensors", {"c": np.array([1, 2, 3], np.float32)})
    return model


def weights_fault(folder: Path) -> str:
    (line,) = messages(lambda: load_graph(folder / "g.json"))
    prefix = f"{folder / 'g.json'}: "
    return line.removeprefix(prefix)


def test_weights_are_read(folder: Path) -> None:
    np.testing.assert_array_equal(load_graph(folder / "g.json").constants["c"], [1, 2, 3])


def test_truncated_weights(folder: Path) -> None:
    data = (folder / "w.safetensors").read_bytes()
    (folder / "w.safetensors").write_bytes(data[:-4])
    expected = (
        f"w.safetensors: tensor 'c': the file is truncated: expected at least {len(data)} bytes, found {len(data) - 4}"
    )
    assert weights_fault(folder) == expected
    (folder / "w.safetensors").write_bytes(data[:5])
    assert "is no safetensors file" in weights_fault(folder)
    (folder / "w.safetensors").write_bytes(b"")
    assert "is no safetensors file" in weights_fault(folder)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (
            b"PK\3\4" + bytes(100),
            "w.safetensors is no safetensors file: expected a header of 67324752 bytes, the file has 104",
        ),
        ((5).to_bytes(8, "little") + b"{1: 2", "w.safetensors is no safetensors file: its header is not JSON"),
        ((2).to_bytes(8, "little") + b"[]", "w.safetensors is no safetensors file: expected a JSON object as header"),
        ((2).to_bytes(8, "little") + b"{}", "w.safetensors: expected weights of constant 'c' (f32[3]), found none"),
    ],
)
def test_foreign_weights(folder: Path, data: bytes, expected: str) -> None:
    (folder / "w.safetensors").write_bytes(data)
    assert weights_fault(folder) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (
            {"dtype": "F8_E8M0", "shape": [3], "data_offsets": [0, 3]},
            "tensor 'c': element type 'F8_E8M0' is not supported",
        ),
        ({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}, "tensor 'c': expected 12 bytes for f32[3], found 8"),
        ({"dtype": "F32", "shape": [3], "data_offsets": [1000, 1012]}, "tensor 'c': the file is truncated"),
        (
            {"dtype": "F32", "shape": [-3], "data_offsets": [0, 12]},
            "tensor 'c': expected dtype, shape and data_offsets, found",
        ),
        (
            {"dtype": "F32", "shape": "3", "data_offsets": [0, 12]},
            "tensor 'c': expected dtype, shape and data_offsets, found",
        ),
        (7, "tensor 'c': expected dtype, shape and data_offsets, found 7"),
        ({"dtype": "I32", "shape": [3], "data_offsets": [0, 12]}, "expected f32[3] for constant 'c', found i32[3]"),
        (
            {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]},
            "expected f32[3] for constant 'c', found f32[1, 3]",
        ),
    ],
)
def test_lying_headers(folder: Path, entry: object, expected: str) -> None:
    header = json.dumps({"c": entry, "__metadata__": {}}).encode()
    (folder / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    assert weights_fault(folder).startswith(f"w.safetensors: {expected}")


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../secret", "", "..", "c:w", "a\\b", "a\0b"])
def test_weights_stay_inside_the_folder(folder: Path, path: str) -> None:
    (folder.parent / "secret").write_bytes(b"x")
    (folder / "g.json").write_text(json.dumps(replace_fields(constants__0__data=None, weights=path)))
    assert "is not a path inside the model's folder; put it beside the model and name it so" in weights_fault(folder)


def test_weights_must_be_regular_files(folder: Path) -> None:
    weights = folder / "w.safetensors"
    kept = folder / "kept"
    weights.rename(kept)
    assert weights_fault(folder) == "file 'w.safetensors' beside the model cannot be opened: No such file or directory"
    weights.symlink_to(kept)
    assert (
        weights_fault(folder)
        == "file 'w.safetensors' passes through a symbolic link; copy the file into the model's folder"
    )
    weights.unlink()
    os.link(kept, weights)
    assert weights_fault(folder) == "file 'w.safetensors' is a hard link: 2 names share its content; copy the file"
    weights.unlink()
    os.mkfifo(weights)
    assert weights_fault(folder) == "file 'w.safetensors' is not a regular file"


def test_the_model_file_itself(tmp_path: Path) -> None:
    assert messages(lambda: load_graph(tmp_path / "no.json")) == [f"{tmp_path / 'no.json'}: No such file or directory"]
    (tmp_path / "bytes.json").write_bytes(b"{\xff}")
    assert messages(lambda: load_graph(tmp_path / "bytes.json")) == [
        f"{tmp_path / 'bytes.json'}: expected UTF-8 text, found byte 0xff at offset 1"
    ]
