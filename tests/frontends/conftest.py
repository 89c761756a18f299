"""What tests of PyTorch's frontend share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def dynamo_afresh() -> Iterator[None]:
    """Let Dynamo know nothing of other tests, and PyTorch multiply f32 as f32."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch._dynamo.reset()
