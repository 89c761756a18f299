"""Benches switch PyTorch's gradients off for the process that they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from cuts.bench.operators import ops
from cuts.bench.operators.contenders import copy_bandwidth


@pytest.fixture(autouse=True)
def _gradients_as_they_were() -> Iterator[None]:
    """Restore PyTorch's state for later tests."""
    before = sys.modules["torch"].is_grad_enabled() if "torch" in sys.modules else True
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_grad_enabled(before)


@pytest.fixture(autouse=True)
def _small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the copy that rows are set beside be of 1 MiB, not of 1 GiB, which takes seconds without a GPU."""
    monkeypatch.setattr(ops, "copy_bandwidth", lambda device: copy_bandwidth(device, 1 << 20))
