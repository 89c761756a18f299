"""Profiles of a user's own device, and predictions by them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cuts.cli.layer_kernels import kernel_label, layer_graph
from cuts.cli.main import main
from cuts.ir.errors import UsageError
from cuts.latency.dataset import known_profiles, load_profile, packaged_profiles
from cuts.latency.operations import LayerOperation
from cuts.latency.predictor import Predictor
from cuts.latency.profiling import LayerTask, TracedKernel, profile_kernels
from cuts.latency.profiling.tasks import convolution_flops, small_tasks
from cuts.tests.latency.small_models import small_models
from cuts.tests.needs import needs_opencl

#: A profile that `cuts latency profile --target opencl --name cpu` made.
RECORDED_PROFILE = Path(__file__).parent / "data"


@pytest.fixture
def user_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    load_profile.cache_clear()
    yield tmp_path / "cuts" / "profiles"
    load_profile.cache_clear()


def modelled_time(task: LayerTask) -> list[list[TracedKernel]]:
    """Return three runs of one kernel with tiles of 32 x 64."""
    if task.op != "conv2d":
        return [[TracedKernel(f"cuts_{task.op}", us=5.0 + 1e-4 * np.prod(task.shape))]] * 3
    n, c, h, w, k, r, s, *_ = task.shape
    blocks = -(-n * h * w // 32) * -(-k // 64)
    return [[TracedKernel("cuts_conv2d_32x64x16", (blocks, 1, 1), us=2.0 + 1e-3 * blocks * c * r * s)]] * 3


def test_small_tasks_are_limited_and_varied() -> None:
    tasks = [task for task, _ in zip(small_tasks(1e8), range(300), strict=False)]
    assert tasks == [task for task, _ in zip(small_tasks(1e8), range(300), strict=False)]
    assert all(convolution_flops(task.shape) <= 1e8 for task in tasks if task.op == "conv2d")
    assert {task.op for task in tasks} == {"conv2d", "linear", "add", "relu"}


def test_a_profile_goes_on_and_predicts(user_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason="the selection is learned by scikit-learn")
    asked: list[str] = []

    def measure(task: LayerTask) -> list[list[TracedKernel]]:
        asked.append(task.key)
        if len(asked) % 10 == 0:
            raise ValueError("refused")
        return modelled_time(task)

    ends = iter(range(10**6))
    monkeypatch.setattr("cuts.latency.profiling.user_profile.time.monotonic", lambda: next(ends))
    made = profile_kernels("mine", measure, {"gpu": "none"}, seconds=150)
    again = profile_kernels("mine", measure, {"gpu": "none"}, seconds=150)
    assert len(asked) == len(set(asked)) == 300
    assert (made.layers, again.layers) == (135, 270)
    assert known_profiles() == ("h200", "mine") and packaged_profiles() == ("h200",)
    with small_models():
        assert main(["predict", "conv2d", "N=1", "C=64", "H=14", "K=64..192:32", "R=3", "--target", "mine"]) == 0
    assert load_profile("mine").facts == {"gpu": "none"}


def test_a_recorded_profile_of_the_cpu_predicts(user_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn", reason="the selection is learned by scikit-learn")
    shutil.copytree(RECORDED_PROFILE, user_data)
    profile = load_profile("cpu")
    assert profile.facts["kernels"] == "cuts"
    assert {name.split("_")[0] for name in profile.kernels.values()} == {"cuts"}
    with small_models():
        arguments = ["predict", "conv2d", "N=1", "C=96", "H=14", "K=64..192:64", "R=3", "--target", "cpu", "--json"]
        assert main(arguments) == 0
    points = json.loads(capsys.readouterr().out)["curves"][0]["points"]
    with pytest.raises(UsageError, match="operation 'relu' was not profiled on 'cpu'"):
        Predictor(profile, "fp32", "cold").operations([LayerOperation("relu", (1, 8, 4, 4))])
    assert len(points) == 3
    assert all(0 < each["low"] < each["us"] < each["high"] for each in points)


@needs_opencl
@pytest.mark.as_users_build
def test_the_command_profiles_an_opencl_device(user_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latency", "profile", "--target", "opencl", "--name", "here", "--minutes", "0.02"]) == 0
    assert "--target here" in capsys.readouterr().out
    assert main(["latency", "list"]) == 0
    assert capsys.readouterr().out.split() == ["h200", "here"]
    assert (user_data / "here.json").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--target", "opencl", "--gpu", "0"], "expected --gpu or --target"),
        (["--minutes", "0"], "--minutes: expected a number above 0"),
        (["--target", "opencl", "--name", "../other"], "--name: expected small letters"),
    ],
)
def test_a_wrong_profile_is_refused(
    options: list[str], words: str, user_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["latency", "profile", *options]) == 2
    assert words in capsys.readouterr().err


def test_a_profile_without_layers_is_refused(user_data: Path) -> None:
    with pytest.raises(UsageError, match="no layer was measured"):
        profile_kernels("mine", modelled_time, {}, seconds=-1.0)


def test_layers_become_graphs_and_tiles_names() -> None:
    graph, _ = layer_graph(LayerTask("edges", "r2", "conv2d", (1, 8, 6, 6, 4, 3, 3, 2, 2, 1, 1, 1, 1)))
    assert graph.types["y"].shape == (1, 4, 3, 3)
    with pytest.raises(ValueError, match="'max_pool' is not profiled"):
        layer_graph(LayerTask("other", "max_pool", "max_pool", (1, 8, 6, 6, 3, 2, 1)))
    tiles = {"i0": {"block": 32}, "i1": {"block": 2}, "i2": {"block": 14}}
    info = {"parameters": {"segments": [{"tiles": tiles, "reductions": [{"block_k": {"r0": 8, "r1": 3}}]}]}}
    assert kernel_label("conv2d", info) == "cuts_conv2d_28x32x24"
    assert kernel_label("relu", {}) == "cuts_relu"
