"""Laws of memory of `torch.compile`, over random graphs.

Inputs are empty, expanded, overlapping, reversed or views of one another; graphs write them and return views of them.
Results, written inputs, strides and shared storages are those of eager, and no internal error leaves the library.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import needs_opencl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("dynamo_afresh")]
Tensors = list[Any]

#: Layouts of an input of 3 x 4 elements, as functions of memory of 64 numbers.
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda m: m[:12].view(3, 4), "transposed": lambda m: m[:12].view(4, 3).t(),
    "offset": lambda m: m[5:17].view(3, 4), "with gaps": lambda m: m[:24].view(3, 8)[:, ::2],
    "expanded": lambda m: m[:4].expand(3, 4), "expanded rows": lambda m: m[:3, None].expand(3, 4),
    "overlapping": lambda m: m.as_strided((3, 4), (2, 1)), "one number": lambda m: m[7].expand(3, 4),
    "flipped": lambda m: m[:12].view(3, 4).flip(1), "empty": lambda m: m[:0].view(0, 4),
    "empty columns": lambda m: m[:0].view(3, 0), "negative": lambda m: torch._neg_view(m[:12].view(3, 4)),
}  # fmt: skip
#: Steps of a graph: each takes the values so far and two of them, and adds one.
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b if a.shape == b.shape else a + 1, "exp": lambda a, _: a.clamp(max=2).exp(),
    "transpose": lambda a, _: a.t(), "flip": lambda a, _: a.flip(0), "slice": lambda a, _: a[1:],
    "column": lambda a, _: a[:, :1], "softmax": lambda a, _: a.softmax(-1), "view": lambda a, _: a.reshape(-1),
    "rows": lambda a, _: a.sum(-1, keepdim=True), "same": lambda a, _: a, "detach": lambda a, _: a.detach(),
    "matmul": lambda a, b: a @ b.t() if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[1] else a * 2,
    "cut out": lambda a, _: torch.nextafter(a, a + 1), "unfold": lambda a, _: a.unfold(0, min(2, a.shape[0]), 1),
    "expand": lambda a, _: a[None].expand(2, *a.shape), "wide": lambda a, _: a.double().float(),
}  # fmt: skip
#: Writes of a value.
WRITES: dict[str, Callable[[Any, Any], Any]] = {
    "add_": lambda a, _: a.add_(1), "row": lambda a, _: a[:1].zero_(), "copy_": lambda a, b: a.copy_(b.sum()),
    "mul_": lambda a, _: a.t().mul_(2) if a.dim() == 2 else a.mul_(2),
}  # fmt: skip
#: Inputs that PyTorch itself refuses to write.
UNWRITABLE = ("expanded", "expanded rows", "overlapping", "one number")


@st.composite
def programs(draw: Any) -> tuple[list[tuple[str, int]], list[tuple[str, int, int]], list[int]]:
    """Draw layouts of inputs with their memory, steps with operands, and results."""
    layouts = draw(st.lists(st.tuples(st.sampled_from(sorted(LAYOUTS)), st.integers(0, 1)), min_size=1, max_size=3))
    count, steps = len(layouts), []
    memories = {m for name, m in layouts if name in UNWRITABLE}
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from([*sorted(STEPS), *sorted(WRITES)]))
        first, second = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        if name in WRITES and memories:
            continue
        steps.append((name, first, second))
        count += name in STEPS
    return layouts, steps, draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=4))


def function_of(steps: list[tuple[str, int, int]], results: list[int]) -> Callable[..., Tensors]:
    """Return the function of a program."""

    def function(*given: Any) -> Tensors:
        values = list(given)
        for name, first, second in steps:
            if name in WRITES:
                WRITES[name](values[first], values[second])
            else:
                values.append(STEPS[name](values[first], values[second]))
        return [values[number] for number in results]

    return function


def inputs_of(layouts: list[tuple[str, int]]) -> Tensors:
    memories = [torch.linspace(-1, 2, 64), torch.linspace(2, -2, 64)]
    return [LAYOUTS[name](memories[number]) for name, number in layouts]


def storages_of(tensors: Tensors) -> list[int]:
    """Return for each tensor the first one that shares its storage."""
    places = [t.untyped_storage().data_ptr() or -1 - n for n, t in enumerate(tensors)]
    return [places.index(place) for place in places]


def facts_of(tensors: Tensors) -> list[Any]:
    """Return values, strides, offsets and shared storages."""
    layout = [(t.stride(), t.storage_offset(), t.is_neg()) for t in tensors]
    return [[t.clone().resolve_neg() for t in tensors], layout, storages_of(tensors)]


def run(program: Any, backend: Any) -> list[Any]:
    """Run a program, and return the facts of its results and inputs."""
    layouts, steps, results = program
    inputs, function = inputs_of(layouts), function_of(steps, results)
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = (torch.compile(function, backend=backend) if backend else function)(*inputs)
    return facts_of([*found, *inputs])


def check(program: Any) -> None:
    """Compare a program with eager, where PyTorch's own backend computes the same."""
    try:
        expected, own = run(program, None), run(program, "aot_eager")
    except Exception:  # PyTorch refuses the program in one of many ways
        return
    found = run(program, cuts_backend)
    if own[1:] == expected[1:]:
        assert found[1:] == expected[1:]
    torch.testing.assert_close(found[0], own[0], rtol=1e-4, atol=1e-5)


@needs_opencl
@settings(
    max_examples=400 if NIGHTLY else 60, deadline=None, derandomize=not NIGHTLY,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
@given(programs())
def test_results_alias_as_in_eager(program: Any) -> None:
    check(program)


@needs_opencl
def test_negated_memory_is_read_as_numbers() -> None:
    check(([("negative", 0), ("dense", 0)], [("sum", 0, 1), ("exp", 0, 0)], [2, 3, 0]))
