"""PyTorch's `scan` is one operation for any number of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
scans = pytest.importorskip("torch._higher_order_ops.scan")

from cuts.compile.build import build  # torch is optional

from ..needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # PyTorch's own


class Recurrent(torch.nn.Module):
    """Recurrence with results.

    The state is h = tanh(h W + e), the result of each step h * e. In reverse it begins with the last element.
    """

    def __init__(self, reverse: bool) -> None:
        super().__init__()
        self.reverse = reverse
        self.w = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 9).reshape(3, 3))

    def forward(self, h: Any, x: Any) -> Any:
        def step(state: Any, element: Any) -> Any:
            following = torch.tanh(state @ self.w + element)
            return following, following * element

        return scans.scan(step, h, x, dim=0, reverse=self.reverse)


def difference(steps: int, target: str, reverse: bool = False) -> tuple[int, float]:
    """Return the node count, and the difference from PyTorch's results."""
    torch.manual_seed(0)
    module, given = Recurrent(reverse), (torch.randn(2, 3), torch.randn(steps, 2, 3))
    with torch.no_grad():
        expected = [value.numpy() for value in module(*given)]
    plan = build(module, given, target=target)
    found = plan.run(dict(zip(plan.inputs, (value.numpy() for value in given), strict=True)))
    assert plan.plan.model is not None
    pairs = zip(found.values(), expected, strict=True)
    return len(plan.plan.model.graph.nodes), max(float(np.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("reverse", [False, True])
def test_node_count_is_independent_of_length(reverse: bool) -> None:
    found = {steps: difference(steps, "reference", reverse) for steps in (1, 2, 300)}
    assert max(error for _, error in found.values()) < 1e-5
    assert len({nodes for steps, (nodes, _) in found.items() if steps > 1}) == 1


@needs_opencl
def test_kernels_take_a_thousand_steps() -> None:
    assert difference(1000, "opencl")[1] < 1e-5
