"""Benches switch PyTorch's gradients off for the process that they are."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _gradients_as_they_were() -> Iterator[None]:
    """Leave PyTorch as it was for the tests behind."""
    before = sys.modules["torch"].is_grad_enabled() if "torch" in sys.modules else True
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_grad_enabled(before)
