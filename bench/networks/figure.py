"""Figure 5 of DeepCuts with what the ledger has: speed-ups over graphed PyTorch, a bar for each system, as an SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt

from .ledger import measured
from .models import APPLICATIONS
from .systems import CURVED, SYSTEMS, Row

#: What all speed-ups are over.
BASE = "PyTorch"
PANELS = (("CNN inference", ("CNN",), "inference"), ("RNN and MLP inference", ("RNN", "MLP"), "inference"),
          ("Training", ("CNN", "RNN", "MLP"), "training"))  # fmt: skip
COLOURS = ("#0b6e4f", "#4d9078", "#a3c9a8", "#e09f3e", "#9e2a2b", "#540b0e", "#335c67")
_KINDS = {model.name: model.kind for model in APPLICATIONS}


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the panels that have rows; the same rows make the same file."""
    found = {key: each for key, each in measured(rows).items() if BASE in each and len(each) > 1}
    shown = [name for name in SYSTEMS if name not in (BASE, *CURVED)]
    names = [name for name in shown if any(name in each for each in found.values())]
    panels = [(title, part) for title, kinds, task in PANELS if (part := _part(found, kinds, task))]
    mpl.rcParams.update({"svg.hashsalt": "cuts", "svg.fonttype": "none", "font.size": 9})
    figure, axes = plt.subplots(
        len(panels) or 1, 1, figsize=(10, 2.6 * (len(panels) or 1)), squeeze=False, constrained_layout=True
    )
    for axis, (title, part) in zip(axes[:, 0], panels, strict=False):
        width = 0.8 / len(names)
        for number, name in enumerate(names):
            bars = [(x, each[BASE]["ms"] / each[name]["ms"]) for x, each in enumerate(part.values()) if name in each]
            places = [x + (number - (len(names) - 1) / 2) * width for x, _ in bars]
            axis.bar(places, [height for _, height in bars], width, label=name, color=_colour(name))
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_title(title, loc="left")
        axis.set_ylabel("speed-up over graphed PyTorch")
        axis.set_xticks(range(len(part)), [f"{model}\nb{batch}" for model, _, batch in part])
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, ncols=len(names))
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def _part(
    found: dict[tuple[str, str, int], dict[str, Row]], kinds: Sequence[str], task: str
) -> dict[tuple[str, str, int], dict[str, Row]]:
    return {key: each for key, each in found.items() if _KINDS[key[0]] in kinds and key[1] == task}


def _colour(name: str) -> str:
    return COLOURS[list(SYSTEMS).index(name) % len(COLOURS)]
