"""Models of the benchmark of training steps, in small."""

from __future__ import annotations

from copy import deepcopy

import pytest

torch = pytest.importorskip("torch")

from cuts.bench.training.command import steps_table
from cuts.bench.training.models import MODELS_BY_NAME


@pytest.mark.parametrize("name", ["convnext-t", "bilstm", "unet"])
def test_small_models_have_losses_and_gradients(name: str) -> None:
    case = MODELS_BY_NAME[name].case("cpu", 2, is_small=True)
    losses = []
    for module in (case.module, deepcopy(case.module)):
        losses.append(case.loss(module(*case.inputs)))
        losses[-1].backward()
        assert all(each.grad is not None for each in module.parameters())
    assert losses[0] == losses[1] > 0


def test_table_compares_with_the_right_peer() -> None:
    times = {"eager": 2.0, "inductor": 3.0, "cuts": 1.0}
    rows = [
        {"class": way, "name": "n", "batch": 1, "precision": precision, "ms": ms, "peak_mb": ms}
        for precision in ("bf16", "fp32")
        for way, ms in times.items()
    ]
    table = steps_table(rows)
    assert "bf16: geometric mean 3.000, least 3.000; peak 0.333" in table
    assert "fp32: geometric mean 2.000" in table
