"""`cuts predict` and `cuts.latency.predict` on the package's profile.

The tests cover output and refusals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuts.cli import main
from cuts.cli.machines.predict import short
from cuts.ir import BackendError, UsageError

pytest.importorskip("sklearn", reason="the selection is learned by scikit-learn")
from cuts import latency
from cuts.latency import model_cache
from cuts.latency.compiled_kernels.own_kernels import read_own, unseen_own
from cuts.latency.compiled_kernels.own_plans import (
    PlannedLaunch,
    TimedPlan,
    fit_own_plans,
    read_plans,
    summarise,
    unseen_plans,
)
from cuts.latency.dataset import load_profile, training_samples
from cuts.latency.predictor import Predictor, predictor
from cuts.tests.latency.metrics import score
from cuts.tests.latency.small_models import small_models


@pytest.fixture(scope="module", autouse=True)
def fitted_small() -> Iterator[None]:
    with small_models():
        yield


LAYER = {"N": 16, "C": 72, "H": 56, "K": 128, "R": 3}


def test_a_layer_has_time_interval_and_kernels() -> None:
    found = latency.predict("conv2d", LAYER, "h200")
    assert found.low < found.us < found.high
    assert 100 < found.us < 600
    assert found.kernels and found.blocks > 0
    assert found.warnings == ()


def test_a_small_model_predicts_most_held_out_layers() -> None:
    held = load_profile("h200").convolutions("fp32").of("held")
    some = held.where(np.arange(len(held)) % 5 == 0)
    found = latency.find_predictor("h200", "fp32", "cold").convolutions(some.layers)
    assert score(np.array([each.us for each in found]), some.cold).within >= 0.7


def test_layers_that_are_scored_were_not_trained_on() -> None:
    for precision in ("fp32", "tf32"):
        samples = load_profile("h200").convolutions(precision)
        train, test = training_samples(samples), samples.of("held", "sweep")
        sweeps = {(case, row[1]) for case, row in zip(train.cases, train.layers.table, strict=True) if case != "any"}
        assert not sweeps & {(case, row[1]) for case, row in zip(test.cases, test.layers.table, strict=True)}


@pytest.mark.parametrize(
    ("change", "named"),
    [({"N": 4096}, "N=4,096"), ({"C": 6000}, "C=6,000"), ({"R": 31, "H": 64}, "R=31"), ({"groups": 2}, "groups=2")],
)
def test_predictions_outside_the_profile_have_wider_intervals(change: dict[str, int], named: str) -> None:
    inside, outside = (latency.predict("conv2d", LAYER | each, "h200") for each in ({}, change))
    assert named in outside.warnings[0]
    assert outside.high / outside.us >= max(2.0, inside.high / inside.us)


def test_the_further_outside_the_wider() -> None:
    widths = [
        each.high / each.us for each in (latency.predict("conv2d", LAYER | {"N": n}, "h200") for n in (128, 1024, 4096))
    ]
    assert widths == sorted(widths)


@pytest.mark.parametrize(
    ("op", "shape", "target", "message"),
    [
        ("conv2d", LAYER, "gtx1080", "no layers were profiled on target 'gtx1080'; profiled are h200;"),
        ("conv2d", LAYER | {"K": 0}, "h200", "size K=0"),
        ("conv2d", (1, 2, 3), "h200", "a convolution has the 13 sizes"),
        ("conv3d", (1, 2, 3), "h200", "unknown operation 'conv3d'"),
        ("relu", (1, 2, 3), "h200", r"'relu' has 4 sizes \(n, c, h, w\), found 3"),
        ("linear", (1, 0, 3), "h200", "'linear': size inputs: expected 1 to"),
    ],
)
def test_bad_questions_are_refused(
    op: str, shape: object, target: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # no profiles of the user's own
    with pytest.raises(UsageError, match=message):
        latency.predict(op, shape, target)  # type: ignore[arg-type]


@pytest.mark.parametrize("op", ["relu", "add", "batch_norm", "global_average"])
def test_operations_that_move_memory_are_predicted(op: str) -> None:
    small, large = (latency.predict(op, (16, c, 56, 56), "h200").us for c in (64, 512))
    assert small < large


def test_a_sweep_shows_steps_and_buckets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "conv2d", "N=16", "C=100", "H=56", "K=64..512:16", "R=3", "--buckets"]) == 0
    text = capsys.readouterr().out
    assert "blocks" in text
    assert "implicit_gemm" in text
    assert "kernels for 29 sizes" in " ".join(text.split())


def test_a_json_sweep_has_points_and_buckets(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "conv2d", "N=16", "C=64,100", "H=56", "K=64..128:16", "R=3", "--buckets", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [curve["fixed"]["C"] for curve in values["curves"]] == [64, 100]
    points = values["curves"][0]["points"]
    assert [point["K"] for point in points] == [64, 80, 96, 112, 128]
    assert all(point["low"] < point["us"] < point["high"] for point in points)
    assert values["curves"][0]["buckets"][-1]["last"] == 128


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_curves_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str) -> None:
    pytest.importorskip("matplotlib", reason="curves are drawn by matplotlib")
    path = tmp_path / f"curve{suffix}"
    assert main(["predict", "conv2d", "C=64", "H=14", "K=32..64:8", "R=1", "--plot", str(path)]) == 0
    assert path.read_bytes()[:5] in (b"<?xml", b"\x89PNG\r")
    assert "steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv2d", "C=8"], "size 'H' of a convolution is missing"),
        (["conv2d", "C=64", "H=7", "K=8", "R=1", "--target", "p100"], "no layers were profiled on target 'p100'"),
        (["conv2d", "C=64", "H=7", "K=8", "R=1", "--plot", "x.pdf"], "expected a name that ends with .svg or .png"),
        (["relu", "n=1..3"], "expected sizes like rows=16"),
        (["conv2d", "C=64", "H=7", "K=8", "R=1", "--kernels", "cuts", "--precision", "tf32"], "tuned in strict fp32"),
        (["linear", "rows=1"], "'linear' has the sizes rows, inputs, outputs, found rows"),
        (["linear", "rows=\u00b2", "inputs=1", "outputs=1"], "expected sizes like rows=16"),
        (["linear", "rows=1", "rows=2", "inputs=3"], "size 'rows' is given twice"),
        (["linear", "rows=" + "9" * 23, "inputs=1", "outputs=1"], "size rows: expected 1 to 1000000000"),
        (["add", "n=0", "c=1", "h=1", "w=1"], "size n: expected 1 to 1000000000, found 0"),
        (
            ["max_pool", "n=1", "c=1", "h=8", "w=8", "window=3", "stride=0", "padding=0"],
            "size stride: expected 1 to 1000000000, found 0",
        ),
        (
            ["max_pool", "n=1", "c=1", "h=8", "w=8", "window=11", "stride=1", "padding=1"],
            "a window of 11 is larger than the image",
        ),
        (["missing.onnx"], "missing.onnx"),
        (["missing.onnx", "C=3"], "a model takes no sizes"),
    ],
)
def test_bad_commands_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(["predict", *arguments]) in (2, 3)
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_missing_package_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_cache, "_FITTED_BY", ("numpy", "none-such"))
    with pytest.raises(BackendError, match="latency models need none-such, which is not installed; pip install"):
        model_cache._versions.__wrapped__()


def test_sizes_of_an_operation_go_by_their_names() -> None:
    sizes = {"rows": 256, "inputs": 1024, "outputs": 64}
    found = latency.predict("linear", sizes, "h200")
    turned = latency.predict("linear", dict(reversed(sizes.items())), "h200")
    assert found == turned == latency.predict("linear", (256, 1024, 64), "h200")


def test_kernels_of_cuts_are_predicted_from_tuned_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["predict", "conv2d", "N=16", "C=128", "H=28", "K=64..256:64", "R=3", "--kernels", "cuts", "--json"]) == 0
    )
    (curve,) = json.loads(capsys.readouterr().out)["curves"]
    times = [point["us"] for point in curve["points"]]
    assert times == sorted(times)
    assert all(point["low"] < point["us"] < point["high"] for point in curve["points"])
    assert len(curve["steps"]) == 4


def test_tuned_layers_that_were_left_out_are_predicted() -> None:
    layers, us = read_own(load_profile("h200"))
    assert score(unseen_own(layers, us), us).within >= 0.65


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3_warpsize2x2x1_g1_ffma",
         "sm80_xmma_fprop_implicit_gemm 256x64x8"),
        ("void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, float, int>(long)",
         "conv_depthwise2d_forward_kernel"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x3_nn_align1>(Params)",
         "cutlass_80_tensorop_s1688gemm 128x64_32x3"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(Params)", "internal::gemvx::kernel"),
    ],
)  # fmt: skip
def test_names_of_kernels_are_shortened_for_reading(name: str, read: str) -> None:
    assert short((name,)) == read
    assert short((name, "Memset (Device)")) == f"{read} (+1)"


def write_model(path: Path) -> None:
    """Write a small network with an operation outside of the profile.

    It has a convolution, ReLU, that operation, a pool, and a product.
    """
    onnx = pytest.importorskip("onnx", reason="the model is an ONNX file")
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    draw = np.random.default_rng(0)
    weights = {"w": draw.normal(size=(32, 3, 3, 3)), "b": draw.normal(size=32), "m": draw.normal(size=(10, 32))}
    nodes = [
        make("Conv", ["x", "w", "b"], ["c"], name="conv", strides=[2, 2], pads=[1, 1, 1, 1]),
        make("Relu", ["c"], ["r"], name="relu"),
        make("Sin", ["r"], ["s"], name="sin"),
        make("GlobalAveragePool", ["s"], ["g"], name="pool"),
        make("Flatten", ["g"], ["f"], name="flatten"),
        make("Gemm", ["f", "m"], ["y"], name="dense", transB=1),
    ]
    constants = [onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()]
    image, result = (
        value(name, onnx.TensorProto.FLOAT, shape) for name, shape in (("x", [4, 3, 64, 64]), ("y", [4, 10]))
    )
    graph = onnx.helper.make_graph(nodes, "small", [image], [result], constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_model_is_predicted_layer_by_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path / "small.onnx")
    states = []

    def find(target: str, precision: str, state: str) -> Predictor:
        """Record the state; start with an empty cache, not another test's models."""
        states.append(state)
        return predictor(target, precision, "cold")

    monkeypatch.setattr("cuts.cli.machines.predict.find_predictor", find)
    assert main(["predict", str(tmp_path / "small.onnx"), "--json"]) == 0
    assert states == ["warm"]
    values = json.loads(capsys.readouterr().out)
    times = {layer["name"]: layer["us"] for layer in values["layers"]}
    assert list(times) == ["conv", "relu", "sin", "pool", "flatten", "dense"]
    assert times["flatten"] == 0
    assert values["low"] < values["us"] < values["high"]
    terms = [layer["us"] if layer["mean"] is None else layer["mean"] for layer in values["layers"]]
    assert values["us"] >= sum(terms)
    assert "no such operation was profiled" in values["warnings"][0]


def test_timed_plans_of_other_networks_predict_plans() -> None:
    errors = [abs(us / plan.us - 1) for plan, us in unseen_plans(read_plans(load_profile("h200")))]
    assert len(errors) >= 8
    assert sum(error < 0.1 for error in errors) >= 0.8 * len(errors)


def test_launches_of_loops_have_another_share() -> None:
    plans = [TimedPlan("a", 1, 10.0, 0.0, 8.0), TimedPlan("b", 1, 10.0, 10.0, 20.0), TimedPlan("b", 2, 1.0, 2.0, 3.2)]
    model = fit_own_plans(plans)
    assert (model.single.straight, model.single.looped) == (0.8, pytest.approx(1.2))
    planned = [PlannedLaunch("x", "conv", 10.0), PlannedLaunch("y", "gru", 5.0, looped=True)]
    assert model.predict(planned, 1).us == pytest.approx(14.0)
    assert summarise("c", 1, planned, 1.0) == TimedPlan("c", 1, 10.0, 5.0, 1.0)


def test_large_batches_have_other_shares() -> None:
    model = fit_own_plans([TimedPlan(name, n, 10.0, 0.0, us) for name in "ab" for n, us in ((1, 8.0), (16, 9.0))])
    planned = [PlannedLaunch("x", "conv", 10.0)]
    assert [model.predict(planned, batch).us for batch in (1, 2, 64)] == pytest.approx([8.0, 9.0, 9.0])


def test_predictions_of_models_use_the_unmeasured_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "small.onnx")
    assert main(["predict", str(tmp_path / "small.onnx"), "--kernels", "cuts", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    computed = [op for layer in values["layers"] for op in layer["op"].split(", ")]
    assert {"conv", "relu", "sin", "gemm"} <= set(computed) and len(values["layers"]) < len(computed)
    assert all(layer["us"] > 0 for layer in values["layers"])
    assert values["launches"] == len(values["layers"])
    assert values["low"] < values["us"] < values["high"]
    assert values["us"] >= sum(layer["us"] for layer in values["layers"])
    assert main(["predict", str(tmp_path / "small.onnx"), "--kernels", "cuts", "--precision", "tf32"]) == 2
    assert "strict fp32" in capsys.readouterr().err
