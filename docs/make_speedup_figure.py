"""Draws `docs/evaluation.svg`, Figure 5 of DeepCuts: `python docs/make_speedup_figure.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from cuts.bench.networks.ledger import LEDGER, measured_rows
from cuts.bench.networks.systems import CURVE_SYSTEMS, SYSTEMS
from cuts.bench.networks.tables import KINDS
from cuts.bench.tools.records import Row, read_rows

FIGURE = Path(__file__).parent / "evaluation.svg"
#: Denominator of all speed-ups.
BASE = "PyTorch"
PANELS = (("CNN inference", ("CNN",), "inference"), ("RNN and MLP inference", ("RNN", "MLP"), "inference"),
          ("Training", ("CNN", "RNN", "MLP"), "training"))  # fmt: skip
COLOURS = ("#0b6e4f", "#4d9078", "#a3c9a8", "#e09f3e", "#9e2a2b", "#540b0e", "#335c67")


def draw(rows: Sequence[Row], path: Path) -> None:
    """Draw the panels that have rows; equal rows make equal files."""
    mpl, plt = import_module("matplotlib"), import_module("matplotlib.pyplot")
    found = {key: each for key, each in measured_rows(rows).items() if BASE in each and len(each) > 1}
    shown = [name for name in SYSTEMS if name not in (BASE, *CURVE_SYSTEMS)]
    names = [name for name in shown if any(name in each for each in found.values())]
    panels = [(title, part) for title, kinds, task in PANELS if (part := _task_rows(found, kinds, task))]
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


def _task_rows(
    found: Mapping[tuple[str, str, int], dict[str, Row]], kinds: Sequence[str], task: str
) -> dict[tuple[str, str, int], dict[str, Row]]:
    return {key: each for key, each in found.items() if KINDS[key[0]] in kinds and key[1] == task}


def _colour(name: str) -> str:
    return COLOURS[list(SYSTEMS).index(name) % len(COLOURS)]


if __name__ == "__main__":
    draw(read_rows(LEDGER), FIGURE)
