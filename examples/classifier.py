"""Classify a picture with a trained model, and compare with ONNX Runtime.

The model is the text-direction classifier in the package rapidocr: is a line of text upright or upside down? The
kernels are generated here and run through OpenCL, on the CPU where there is no other device.

    pip install '.[examples]'
    python examples/classifier.py
"""

from __future__ import annotations

import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import cuts
import numpy as np
import onnxruntime
from cuts.cli.main import main as command_line
from PIL import Image, ImageDraw, ImageFont

HEIGHT, WIDTH = 48, 192


def model_path() -> Path:
    """Return where the installed package keeps the model."""
    package = find_spec("rapidocr")
    if package is None or package.origin is None:
        sys.exit("this example needs its model: pip install '.[examples]'")
    return Path(package.origin).parent / "models" / "ch_ppocr_mobile_v2.0_cls_mobile.onnx"


def line_of_text(text: str) -> Image.Image:
    """Draw a line of text as large as the model's input."""
    picture = Image.new("RGB", (WIDTH, HEIGHT), "white")
    ImageDraw.Draw(picture).text((6, 8), text, fill="black", font=ImageFont.load_default(28))
    return picture


def main() -> int:
    """Verify on random numbers, then classify text both ways up."""
    model = model_path()
    with tempfile.TemporaryDirectory() as folder:
        code = command_line(
            ["compile", str(model), "--shape", f"x=1x3x{HEIGHT}x{WIDTH}", "--verify", "-o", f"{folder}/classifier.plan"]
        )
        if code:
            return code
        plan = cuts.load(f"{folder}/classifier.plan")
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    upright = line_of_text("hello kernels")
    for name, picture in (("upright", upright), ("upside down", upright.rotate(180))):
        pixels = (np.asarray(picture, np.float32).transpose(2, 0, 1)[None] / 255 - 0.5) / 0.5
        (found,) = plan.run({"x": pixels}).values()
        (expected,) = session.run(None, {"x": pixels})
        error = float(np.abs(found - expected).max() / np.abs(expected).max())
        degrees = (0, 180)[int(found[0].argmax())]
        print(f"{name}: the model says {degrees} degrees ({found[0].max():.1%} sure), {error:.1e} from ONNX Runtime")
        if error > 1e-3:
            return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
