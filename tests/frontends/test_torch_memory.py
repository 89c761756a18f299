"""Memory of compiled graphs of many shapes.

Weights have one copy, the number of plans is bounded, and evicted plans are freed.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pyopencl")

from cuts.backends.opencl.launch_sequence import OpenCLLaunchSequence
from cuts.compile.external_buffers import InPlaceProgram
from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.devices import shared_bytes
from cuts.frontends.torch.dynamo_backend.dynamic import FunctionCache
from cuts.runtime import ExternalSession
from cuts.tests.amounts import NIGHTLY

nn = torch.nn
#: Elements along both axes of the weight: 4 MiB, so that a copy for each of 16 shapes is 64 MiB.
WEIGHT_EXTENT = 1024
SHAPES = 50 if NIGHTLY else 16
#: Shapes whose plans are kept.
KEPT_SHAPES = 8 if NIGHTLY else 4


@pytest.fixture(autouse=True)
def _new_graphs() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def track_instances(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Return weak references to all later instances of a class."""
    made: list[weakref.ref[Any]] = []
    initialise: Callable[..., None] = kind.__init__

    def note(self: Any, *arguments: Any, **others: Any) -> None:
        made.append(weakref.ref(self))
        initialise(self, *arguments, **others)

    monkeypatch.setattr(kind, "__init__", note)
    return made


def alive(made: list[weakref.ref[Any]]) -> int:
    """Return how many of some objects are kept."""
    return sum(each() is not None for each in made)


def compile_model(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend=cuts_backend, dynamic=True, options=options)


@pytest.mark.parametrize("freeze", [False, True])
def test_many_shapes_take_bounded_memory(freeze: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds, most = (InPlaceProgram, ExternalSession, OpenCLLaunchSequence), KEPT_SHAPES
    plans = [track_instances(kind, monkeypatch) for kind in kinds]
    model = nn.Linear(WEIGHT_EXTENT, WEIGHT_EXTENT).eval()
    weight = WEIGHT_EXTENT * WEIGHT_EXTENT * 4
    call = compile_model(model, freeze=freeze, max_shapes=most)
    sizes = []
    with torch.no_grad():
        for batch in range(2, 2 + SHAPES):
            x = torch.randn(batch, WEIGHT_EXTENT)
            found = call(x)
            assert max(map(alive, plans)) <= most
            assert shared_bytes() <= weight
            sizes.append(resident_bytes())
        assert torch.allclose(found, model(x), atol=1e-3)
    assert all(len(made) >= SHAPES for made in plans)
    assert sizes[-1] - sizes[1] < 8 * weight, [size >> 20 for size in sizes]
    del call, found
    torch._dynamo.reset()
    gc.collect()
    assert not any(map(alive, plans)) and not shared_bytes()


def test_a_shape_that_left_is_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = track_instances(InPlaceProgram, monkeypatch)
    model = nn.Linear(8, 4).eval()
    call = compile_model(model, max_shapes=2)
    with torch.no_grad():
        for batch, made in ((2, 1), (3, 2), (2, 2), (4, 3), (2, 3), (3, 4)):
            x = torch.randn(batch, 8)
            assert torch.allclose(call(x), model(x), atol=1e-5)
            assert len(plans) == made


def test_a_plan_that_leaves_needs_no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = track_instances(ExternalSession, monkeypatch)
    call = compile_model(nn.Linear(8, 4).eval(), max_shapes=1, freeze=True)
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad():
            for batch in range(2, 6):
                call(torch.randn(batch, 8))
                assert alive(sessions) == 1
    finally:
        gc.enable()


def test_changed_parameters_are_not_shared() -> None:
    model = nn.Linear(256, 256).eval()
    call = compile_model(model, freeze=True)
    with torch.no_grad():
        for batch in (2, 3):
            call(torch.randn(batch, 256))
        model.weight.mul_(2)
        x = torch.randn(2, 256)
        with pytest.warns(UserWarning, match="parameters changed"):
            found = call(x)
        assert torch.allclose(found, model(x), atol=1e-4)
        y = torch.randn(4, 256)
        assert torch.allclose(call(y), model(y), atol=1e-4)


def test_constants_stay_when_a_buffer_moves() -> None:
    model = nn.Linear(300, 256).eval()
    model.register_buffer("written", torch.zeros(2, 256))

    def forward(x: Any) -> Any:
        model.written.add_(1)
        return model(x) + model.written

    call = compile_model(forward, freeze=True)
    x = torch.randn(2, 300)
    with torch.no_grad():
        assert torch.allclose(call(x), model(x) + 1, atol=1e-4)
        model.written.data = torch.zeros(4 * 512 + 1)[1 : 1 + 512].view(2, 256)  # no multiple of 16 bytes
        assert torch.allclose(call(x), model(x) + 1, atol=1e-4)


def test_functions_that_recordings_need_stay() -> None:
    kept: FunctionCache = FunctionCache(1)

    def first() -> None: ...

    def second() -> None: ...

    kept.keep("a", first)
    kept.hold("a", first)
    kept.keep("b", second)
    assert len(kept) == 1 and kept.find("a") is first and kept.find("b") is second
