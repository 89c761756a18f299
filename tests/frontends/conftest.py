"""Fixtures of the tests of the PyTorch importer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def dynamo_afresh() -> Iterator[None]:
    """Reset Dynamo, and let PyTorch multiply f32 as f32."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch._dynamo.reset()
