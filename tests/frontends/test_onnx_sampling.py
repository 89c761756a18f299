"""Deformable convolution, aligned regions and col2im of ONNX.

Random cases are compared with the `onnx` package.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

helper = pytest.importorskip("onnx.helper")

from cuts.frontends.onnx.load import load_onnx  # onnx is optional
from cuts.ir.errors import CutsError
from cuts.ops import Registry
from cuts.ops.reference import evaluate_graph
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

PAIRS = st.tuples(st.integers(1, 2), st.integers(1, 2))


def model(op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray], **attributes: Any) -> Any:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in arrays.items()
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    node = helper.make_node(op, [*arrays, *constants], ["y"], name="it", **attributes)
    graph = helper.make_graph(
        [node], "g", infos, [helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)], tensors
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)])


def check(
    op: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray] | None = None, **attributes: Any
) -> None:
    proto = model(op, arrays, constants or {}, **attributes)
    found = evaluate_graph(load_onnx(proto), Registry.builtin(), arrays)["y"]
    (expected,) = ReferenceEvaluator(proto).run(None, arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def real(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.uniform(-2, 2, shape).astype(np.float32)


@given(st.integers(0, 99), PAIRS, PAIRS, PAIRS, st.integers(1, 2), st.integers(1, 2), st.booleans())
@settings(max_examples=15)
def test_deformable_convolution(
    seed: int, kernel: Any, strides: Any, dilations: Any, groups: int, offset_groups: int, extra: bool
) -> None:
    rng = np.random.default_rng(seed)
    size, pads = (5, 4), tuple(int(n) for n in rng.integers(0, 2, 4))
    out = [(size[a] + pads[a] + pads[a + 2] - dilations[a] * (kernel[a] - 1) - 1) // strides[a] + 1 for a in (0, 1)]
    taps = offset_groups * kernel[0] * kernel[1]
    arrays = {
        "x": real(rng, 2, 4, *size),
        "w": real(rng, 2 * groups, 4 // groups, *kernel),
        "offset": real(rng, 2, 2 * taps, *out),
    }
    if extra:
        arrays |= {"b": real(rng, 2 * groups), "mask": real(rng, 2, taps, *out)}
    given_attributes = {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": groups,
    }
    check("DeformConv", arrays, offset_group=offset_groups, **given_attributes)


@given(
    st.integers(0, 99),
    PAIRS,
    st.integers(0, 3),
    st.sampled_from(("avg", "max")),
    st.sampled_from(("half_pixel", "output_half_pixel")),
)
@settings(max_examples=15)
def test_aligned_regions(seed: int, sizes: Any, samples: int, mode: str, transformation: str) -> None:
    rng, mode = np.random.default_rng(seed), mode if samples else "avg"
    low = rng.uniform(-1, 6, (3, 2))
    rois = np.concatenate([low, low + rng.uniform(0.5, 6, (3, 2))], 1).astype(np.float32)
    arrays = {"x": np.abs(real(rng, 2, 3, 5, 6)), "rois": rois, "batch": rng.integers(0, 2, 3)}
    given_attributes = {
        "output_height": sizes[0],
        "output_width": sizes[1],
        "sampling_ratio": samples,
        "spatial_scale": 0.5,
    }
    check("RoiAlign", arrays, mode=mode, coordinate_transformation_mode=transformation, **given_attributes)


@given(st.integers(0, 99), PAIRS, PAIRS, PAIRS)
@settings(max_examples=15)
def test_columns_put_back_into_an_image(seed: int, block: Any, strides: Any, dilations: Any) -> None:
    rng = np.random.default_rng(seed)
    image, pads = (5, 4), tuple(int(n) for n in rng.integers(0, 2, 4))
    out = [(image[a] + pads[a] + pads[a + 2] - dilations[a] * (block[a] - 1) - 1) // strides[a] + 1 for a in (0, 1)]
    arrays = {"x": real(rng, 2, 3 * block[0] * block[1], out[0] * out[1])}
    check(
        "Col2Im",
        arrays,
        {"image": np.array(image), "block": np.array(block)},
        strides=strides,
        dilations=dilations,
        pads=pads,
    )


def test_maximum_of_data_dependent_samples_is_refused() -> None:
    arrays = {
        "x": np.zeros((1, 1, 4, 4), np.float32),
        "rois": np.zeros((1, 4), np.float32),
        "batch": np.zeros(1, np.int64),
    }
    with pytest.raises(
        CutsError,
        match=r"node 'it' \(RoiAlign\): attribute 'sampling_ratio': the maximum of 0 samples",
    ):
        load_onnx(model("RoiAlign", arrays, {}, output_height=2, output_width=2, mode="max"))


#: ONNX Runtime lets means lose their fraction and takes no integers for cubics, which the package of ONNX rounds.
@pytest.mark.parametrize(("mode", "kind"), [("linear", np.uint8), ("linear", np.int32), ("cubic", np.int8)])
def test_integers_are_resampled(mode: str, kind: Any) -> None:
    limits = np.iinfo(np.int8 if kind is np.int32 else kind)
    arrays = {"x": np.random.default_rng(0).integers(limits.min, limits.max, (1, 2, 5, 6)).astype(kind)}
    constants = {"roi": np.zeros(0, np.float32), "scales": np.zeros(0, np.float32), "sizes": np.array([1, 2, 8, 9])}
    if mode == "cubic":
        check("Resize", arrays, constants, mode=mode)
        return
    ort = pytest.importorskip("onnxruntime")
    proto = model("Resize", arrays, constants, mode=mode)
    proto.ir_version = 8
    found = evaluate_graph(load_onnx(proto), Registry.builtin(), arrays)["y"]
    np.testing.assert_array_equal(found, ort.InferenceSession(proto.SerializeToString()).run(None, arrays)[0])


@pytest.mark.parametrize(
    ("size", "corners"), [((1, 2, 1, 3), 1), ((2, 1, 2, 1), 1), ((1, 1, 1, 2, 1), 1), ((1, 1, 2, 3), 0)]
)
def test_grid_of_one_point_along_an_axis(size: tuple[int, ...], corners: int) -> None:
    torch = pytest.importorskip("torch")
    theta = real(np.random.default_rng(0), size[0], len(size) - 2, len(size) - 1)
    graph = load_onnx(model("AffineGrid", {"theta": theta}, {"size": np.array(size)}, align_corners=corners))
    found = evaluate_graph(graph, Registry.builtin(), {"theta": theta})["y"]
    with warnings.catch_warnings(action="ignore"):  # versions of PyTorch differ for one point
        expected = torch.nn.functional.affine_grid(torch.from_numpy(theta), list(size), align_corners=bool(corners))
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("mode", "padding"), [("linear", "zeros"), ("nearest", "zeros"), ("nearest", "border"), ("cubic", "border")]
)
@pytest.mark.parametrize("corners", [0, 1])
def test_places_of_a_grid_far_outside(mode: str, padding: str, corners: int) -> None:
    places = [3e7 + 5, -3e7 - 5, 3e8, -3e8, 1e10, 0.3, -0.4] + [float("nan")] * (
        (mode, padding) == ("nearest", "border")
    )
    grid = np.array([[[(place, 0.1) for place in places]]], np.float32)
    x = np.random.default_rng(0).normal(size=(1, 2, 4, 5)).astype(np.float32)
    with np.errstate(invalid="ignore"):
        check("GridSample", {"x": x, "grid": grid}, mode=mode, padding_mode=padding, align_corners=corners)
