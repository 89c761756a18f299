"""Fixtures of the tests of the PyTorch importer."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True, scope="package")
def untimed_guards() -> Iterator[None]:
    """Let Dynamo leave out the timing of guards.

    It empties a cache for each graph, and takes half of the time of a small one.
    """
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("torch"):
            patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
        yield


@pytest.fixture
def dynamo_afresh() -> Iterator[None]:
    """Reset Dynamo, and let PyTorch multiply f32 as f32."""
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch._dynamo.reset()
