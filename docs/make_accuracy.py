"""Writes `docs/accuracy.md`, the cost of 8-bit factors: `python docs/make_accuracy.py`.

Ten models of transformers with seeded weights (Xavier) are computed by the reference: as they are, with weights in 8
bits, and with calibrated activations, too. Samples that calibrate are not those that are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import cuts
import numpy as np
from cuts.bench.tools.markdown import markdown_table
from cuts.numerics.comparison import mean_error

DOCUMENT = Path(__file__).parent / "accuracy.md"
HEAD = """# Accuracy of 8-bit factors

`python docs/make_accuracy.py` writes this page. A row has the root mean square error of a model's last hidden state,
relative to its size, against the model in f32. Models are small ones of transformers with Xavier weights of a fixed
seed, and compute the reference. Weights have a scale for each channel (`weights`), activations one scale each
(`calibration`): two random samples calibrate, two others are compared. [Precision](precision.md) has the options.

"""
#: Sizes whose names several families share.
SMALL_SIZES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256, "vocab_size": 512,
}  # fmt: skip
IMAGE = {"image_size": 32, "patch_size": 4}
STAGES = {"depths": [1, 1, 2, 1], "hidden_sizes": [32, 64, 96, 128]}
#: Models by name: the family in transformers, its configuration, and "tokens" or the sides of an image.
MODELS: Mapping[str, tuple[str, Mapping[str, Any], Any]] = {
    "BERT": ("Bert", SMALL_SIZES, "tokens"),
    "DistilBERT": ("DistilBert", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 256}, "tokens"),
    "GPT-2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512, "use_cache": False}, "tokens"),
    "Llama": ("Llama", {**SMALL_SIZES, "num_key_value_heads": 2, "use_cache": False}, "tokens"),
    "Qwen2": ("Qwen2", {**SMALL_SIZES, "num_key_value_heads": 2, "use_cache": False}, "tokens"),
    "ViT": ("ViT", {**SMALL_SIZES, **IMAGE}, 32),
    "DeiT": ("DeiT", {**SMALL_SIZES, **IMAGE}, 32),
    "Swin": ("Swin", {**IMAGE, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}, 32),
    "ConvNeXt": ("ConvNext", {**STAGES, "num_stages": 4}, 64),
    "ResNet": ("ResNet", {**STAGES, "embedding_size": 32}, 64),
}
FORMATS, CALIBRATION_SAMPLES, COMPARED_SAMPLES = ("fp8", "int8"), 2, 2


def make_model(name: str) -> Any:
    """Return a model whose only result is its last hidden state."""
    torch, hf = import_module("torch"), import_module("transformers")
    family, sizes, _ = MODELS[name]

    class FirstOutput(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = getattr(hf, f"{family}Model")(getattr(hf, f"{family}Config")(**sizes))

        def forward(self, given: Any) -> Any:
            return self.model(given)[0]

    return FirstOutput().eval()


def draw_sample(kind: Any, generator: Any) -> Any:
    """Return tokens, or an image."""
    torch = import_module("torch")
    if kind == "tokens":
        return torch.randint(0, 512, (1, 32), generator=generator)
    return torch.randn(1, 3, kind, kind, generator=generator)


def row(name: str) -> list[str]:
    """Return a model's name and its errors in percent."""
    torch, kind = import_module("torch"), MODELS[name][-1]
    torch.manual_seed(0)
    model, generator = make_model(name), torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_normal_(parameter)
    samples = [draw_sample(kind, generator) for _ in range(CALIBRATION_SAMPLES + COMPARED_SAMPLES)]
    before, compared = [(s,) for s in samples[:CALIBRATION_SAMPLES]], [s.numpy() for s in samples[CALIBRATION_SAMPLES:]]

    def results(**options: Any) -> np.ndarray[Any, Any]:
        plan = cuts.build(model, (samples[0],), "reference", **options)
        return np.stack([next(iter(plan.run({next(iter(plan.inputs)): s}).values())) for s in compared])

    exact = results()
    found = [results(weights=f, calibration=c) for f in FORMATS for c in (None, before)]
    return [name, *(f"{100 * mean_error(each, exact):.2g} %" for each in found)]


def main() -> None:
    """Compute all rows and write the table."""
    heads = ["model", *(f"{f}: {what}" for f in FORMATS for what in ("weights", "weights, activations"))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = markdown_table(heads, [row(name) for name in MODELS])
    DOCUMENT.write_text(f"{HEAD}{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
