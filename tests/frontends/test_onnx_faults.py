"""Messages about damaged and unsupported models, and sources of models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import cuts
import numpy as np
import pytest

pytest.importorskip("onnx")

from cuts.frontends.onnx.load import load_onnx, load_onnx_for  # onnx is optional
from cuts.ir.errors import CutsError, CutsWarning, ErrorList, UsageError
from cuts.tests.frontends.test_onnx import I64, F, floats, ints, model, node
from onnx import TensorProto, helper


def faults(*arguments: Any) -> list[str]:
    with pytest.raises(CutsError) as caught:
        load_onnx(*arguments)
    assert caught.value.exit_code == 3
    return [str(e) for e in caught.value.errors] if isinstance(caught.value, ErrorList) else [str(caught.value)]


def test_all_unsupported_operations_are_listed_at_once() -> None:
    nodes = [
        node("Unique", "x", outputs=["a"]), node("Relu", "a", outputs=["b"]), node("NonZero", "b", outputs=["c"]),
        helper.make_node("Fancy", ["x"], ["y"], name="f", domain="com.x"),
    ]  # fmt: skip
    assert faults(model(nodes, {"x": (3, 3)}, 13)) == [
        "<onnx>: 3 operations are not supported: "
        "NonZero (node 'the NonZero'); Unique (node 'the Unique'); com.x.Fancy (node 'f'); "
        "declare them in a .cuts file, or let them run uncompiled: cuts.build_staged"
    ]


@pytest.mark.filterwarnings("ignore:1 operation is outside the vocabulary")
def test_processor_specific_layout_gets_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = model(
        [helper.make_node("ReorderInput", ["x"], ["y"], name="r", domain="com.microsoft.nchwc")],
        {"x": (1, 8, 2, 2)},
        13,
    )
    advice = "; save the optimised model at ORT_ENABLE_EXTENDED; at ORT_ENABLE_ALL it is for one processor"
    assert faults(proto) == [
        f"<onnx>: 1 operation is not supported: com.microsoft.nchwc.ReorderInput (node 'r'){advice}"
    ]
    monkeypatch.setattr("cuts.compile.staged.staged_model.open_onnxruntime", lambda model: None)
    with pytest.raises(CutsError, match=advice):
        cuts.build_staged(proto, "reference").run({"x": np.zeros((1, 8, 2, 2), np.float32)})


def test_misfitting_value_names_its_input() -> None:
    proto = model([node("Add", "n", "n", outputs=["s"]), node("Reshape", "x", "s")], {"x": (3,), "n": (1,)}, 13)
    proto.graph.input[1].type.tensor_type.elem_type = TensorProto.INT64
    with pytest.raises(
        CutsError,
        match=r"'the Reshape' .*; it depends on the values of 'n'; where they are random, give them by --input",
    ):
        load_onnx_for(proto, {"x": np.zeros(3, np.float32), "n": ints(2)})


@pytest.mark.parametrize(
    ("shape", "shapes", "expected"),
    [
        (("n", 3, "h"), None, "<onnx>: input 'x': shape [n, 3, h] is dynamic; fix it, as in --shape x=1x3x?"),
        ((-1, 3, -1), None, "<onnx>: input 'x': shape [?, 3, ?] is dynamic; fix it, as in --shape x=1x3x?"),
        (("n", 3), {"x": (2, 4)}, "<onnx>: input 'x': expected a shape like [n, 3], found [2, 4]"),
        (("n", 3), {"x": (2,)}, "<onnx>: input 'x': expected a shape like [n, 3], found [2]"),
        (("n", 3), {"z": (2, 3)}, "<onnx>: shape given for 'z', which is no input; inputs are 'x'"),
    ],
)
def test_dynamic_shapes_must_be_fixed(shape: Sequence[int | str], shapes: Any, expected: str) -> None:
    assert faults(model([node("Relu", "x")], {"x": shape}, 13), shapes) == [expected]


def test_a_dynamic_batch_is_one_with_a_warning() -> None:
    message = "input 'x': its first axis 'n' is dynamic and is taken as 1; fix it, as in --shape x=1x3"
    with pytest.warns(CutsWarning, match=message):
        graph = load_onnx(model([node("Relu", "x")], {"x": ("n", 3)}, 13))
    assert graph.types["x"].shape == (1, 3)


def functions(calls: dict[str, list[str]]) -> Any:
    """Return a model with a chain of function calls from `a`."""
    proto = model([helper.make_node("a", ["x"], ["y"], domain="own")], {"x": (3,)}, 17)
    proto.opset_import.append(helper.make_opsetid("own", 1))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for name, called in calls.items():
        nodes = [
            helper.make_node(op, [f"v{n}"], [f"v{n + 1}"], domain="own" if op in calls else "")
            for n, op in enumerate(called)
        ]
        proto.functions.append(helper.make_function("own", name, ["v0"], [f"v{len(called)}"], nodes, opsets))
    return proto


def test_a_function_that_calls_itself_is_named() -> None:
    (fault,) = faults(functions({"a": ["Relu", "b"], "b": ["a"]}))
    assert "a function of the model calls itself: " in fault
    assert "'a'" in fault
    assert "'b'" in fault
    assert "calls itself: 'a' -> 'a'" in faults(functions({"a": ["a"]}))[0]


def test_functions_that_grow_without_end_are_refused() -> None:
    names = [*"abcdefghijklmnopqrstuvwxyz"]
    calls = {name: [after] * 4 for name, after in pairwise(names)} | {"z": ["Relu"]}
    assert "its functions stand for 1,125,899,906,842,624 nodes" in faults(functions(calls))[0]
    assert len(load_onnx(functions({"a": ["b", "b"], "b": ["Relu", "Exp"]})).nodes) == 4


@pytest.mark.parametrize(
    ("proto", "expected"),
    [
        (model([node("Reshape", "x", "s")], {"x": (3,), "s": (1,)}, 13),
         "operand 1 (shape) must be a constant, found a computed value"),
        (model([node("Relu", "q")], {"x": (3,)}, 13), "node 'the Relu' (Relu): reads value 'q' that nothing defines"),
        (model([node("Relu", "x", alpha=1.0)], {"x": (3,)}, 13),
         "node 'the Relu' (Relu): attribute 'alpha' is not supported"),
        (model([node("Add", "x", "c")], {"x": (3,)}, 13, {"c": floats(1, 2)}), "node 'the Add' (Add): "),
        (model([node("Relu", "x", "x")], {"x": (3,)}, 13),
         "node 'the Relu' (Relu): expected at most 1 operands, found 2"),
        (model([node("Flatten", "x", axis=3)], {"x": (3, 1)}, 13), "expected an axis from -2 to 2, found 3"),
        (model([node("Unsqueeze", "x", axes=[0, 0])], {"x": (3,)}, 11), "expected each axis once, found [0, 0]"),
        (model([node("Split", "x", outputs=["y", "z"], split=[1, 0])], {"x": (3,)}, 11),
         "expected sizes that add up to 3, found [1, 0]"),
        (model([node("ReverseSequence", "x", "c", batch_axis=0)], {"x": (2, 2)}, 10, {"c": ints(1, 2)}),
         "two axes, found 0 twice"),
        (
            model(
                [node("MaxUnpool", "x", "i", "s", kernel_shape=[2])],
                {"x": (1, 1, 2)},
                11,
                {"i": ints(0, 1).reshape(1, 1, 2), "s": ints(1, 1, 2)},
            ),
            "expected a shape of at least [1, 1, 3], larger in space only, found [1, 1, 2]",
        ),
        (model([node("Relu", "x")], {"x": (3,)}, 99), "<onnx>: expected an operator set from 1 to"),
        (model([node("Relu", "x", outputs=["z"])], {"x": (3,)}, 13),
         "<onnx>: output 'y' is a value that nothing defines"),
    ],
)  # fmt: skip
def test_a_faulty_model_is_explained(proto: Any, expected: str) -> None:
    assert any(expected in line for line in faults(proto)), faults(proto)


@pytest.mark.parametrize(
    ("op", "constants"),
    [
        ("Range", {"start": np.array(0, I64), "limit": np.array(1 << 40, I64), "step": np.array(1, I64)}),
        ("Tile", {"c": floats(1), "n": ints(1 << 40)}),
        ("Expand", {"c": floats(1), "n": ints(1 << 40)}),
    ],
)
def test_small_model_cannot_request_a_huge_constant(op: str, constants: dict[str, np.ndarray]) -> None:
    nodes = [
        node(op, *constants, outputs=["c2"]),
        helper.make_node("Cast", ["c2"], ["c3"], to=F),
        node("Add", "x", "c3"),
    ]
    (message,) = faults(model(nodes, {"x": (1,)}, 13, constants))
    assert f"node 'the {op}' ({op})" in message
    assert "1099511627776" in message


def test_unsupported_element_types_are_named() -> None:
    proto = model([node("Relu", "x")], {"x": (3,)}, 13)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT8E4M3FNUZ
    assert faults(proto) == [
        "<onnx>: input 'x': element type FLOAT8E4M3FNUZ is not supported; "
        "convert the model to float32, float16 or bfloat16"
    ]


@pytest.mark.parametrize("data", [b"", b"not a model", b"\x08\x07\x12"])
def test_foreign_and_truncated_files(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert "not an ONNX model" in faults(path)[0]
    assert faults(tmp_path / "none.onnx") == [f"{tmp_path / 'none.onnx'}: No such file or directory"]


def external(tmp_path: Path, **entries: str) -> Path:
    proto = model([node("Add", "x", "c")], {"x": (3,)}, 13, {"c": floats(1, 2, 3)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    (tmp_path / "data.bin").write_bytes(bytes(4) + floats(1, 2, 3).tobytes())
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    return tmp_path / "m.onnx"


def test_external_data_is_mapped_from_the_models_folder(tmp_path: Path) -> None:
    graph = load_onnx(external(tmp_path, location="data.bin", offset="4", length="12"))
    np.testing.assert_array_equal(graph.constants["c"], [1, 2, 3])


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"location": "../data.bin"}, "is not a path inside the model's folder"),
        ({"location": "data.bin", "offset": "8"}, "expected 12 bytes of external data for f32[3], found offset 8"),
        ({"location": "data.bin", "offset": "-4"}, "expected 12 bytes of external data for f32[3], found offset -4"),
        ({"location": "data.bin", "length": "x"}, "expected 12 bytes of external data for f32[3]"),
        ({"location": "data.bin", "length": "8"}, "expected 12 bytes of external data for f32[3]"),
        ({"location": "none.bin"}, "cannot be opened: No such file or directory"),
        ({}, "its external data cannot be found"),
    ],
)
def test_external_data_is_checked(tmp_path: Path, entries: dict[str, str], expected: str) -> None:
    assert expected in faults(external(tmp_path, **entries))[0]


def test_a_model_may_come_from_memory() -> None:
    proto = model([node("Relu", "x")], {"x": (2, 3)}, 18)
    x = np.array([[-1, 0, 1], [2, -2, 3]], np.float32)
    for form in (proto, proto.SerializeToString()):
        assert np.array_equal(cuts.build(form, "reference").run({"x": x})["y"], np.maximum(x, 0))
    with pytest.raises(UsageError, match=r"a model is a path, a graph, or an ONNX model .*, not builtins\.dict"):
        cuts.build({"nodes": []}, "reference")  # type: ignore[arg-type]
