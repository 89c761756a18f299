"""Draws Figures 1, 4 and 6 of the latency paper.

    python docs/make_latency_figures.py          writes docs/latency_steps.svg and docs/latency_fits.svg

The first shows measured times along the output channels, a color a choice of kernels, and the blocks of the largest
kernel (Figures 1 and 4). The second shows measured times with predictions of models that have not seen the number of
input channels: this model, the linear one in operations, and FastDeepIoT (Figure 6).
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from cuts.bench.paper.latency import predict_sweeps, sweeps
from cuts.latency.dataset import Samples

DOCS = Path(__file__).parent


def draw_steps(path: Path, found: Mapping[str, Samples]) -> None:
    """Draw measured times and blocks along the output channels."""
    figure, axes = _figure(len(found))
    for axis, (label, samples) in zip(axes, found.items(), strict=True):
        channels = samples.layers.column("K")
        for number, choice in enumerate(dict.fromkeys(samples.choices)):
            own = samples.choices == choice
            axis.plot(channels[own], samples.cold[own], ".", markersize=4, label=f"choice {number + 1}")
        blocks = axis.twinx()
        blocks.step(channels, [each.max() for each in samples.blocks], color="black", linewidth=0.7, where="post")
        blocks.set_ylabel("blocks")
        axis.set(title=f"case {label.partition('/')[0]}, C = {label.partition('/')[2]}", xlabel="K")
        axis.legend(fontsize="small")
    axes[0].set_ylabel("microseconds")
    _save(figure, path)


def draw_fits(path: Path, found: Mapping[str, Samples], predictions: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw measured times and predictions along the output channels."""
    figure, axes = _figure(len(found))
    for axis, (label, samples) in zip(axes, found.items(), strict=True):
        channels = samples.layers.column("K")
        axis.plot(channels, samples.cold, ".", color="black", markersize=4, label="measured")
        for name, each in predictions.items():
            axis.plot(channels, each[label], linewidth=1, label=name)
        axis.set(title=f"case {label.partition('/')[0]}, C = {label.partition('/')[2]}", xlabel="K")
        axis.set_ylim(0, 1.6 * samples.cold.max())
    axes[0].set_ylabel("microseconds")
    axes[0].legend(fontsize="small")
    _save(figure, path)


def _figure(count: int) -> tuple[Any, Any]:
    figure = import_module("matplotlib.figure").Figure(figsize=(4.2 * count, 3.6), layout="constrained")
    return figure, figure.subplots(1, count)


def _save(figure: Any, path: Path) -> None:
    matplotlib = import_module("matplotlib")
    matplotlib.rcParams["svg.hashsalt"] = path.name  # the same ids in every run
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Write both figures."""
    found = sweeps()
    draw_steps(DOCS / "latency_steps.svg", found)
    draw_fits(DOCS / "latency_fits.svg", found, predict_sweeps(found))


if __name__ == "__main__":
    main()
