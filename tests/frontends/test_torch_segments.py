"""Segments of many elements, numbered by prefix sums of comparisons."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import cuts
from cuts.frontends.torch.operators.indexed import segments
from cuts.tests.needs import needs_opencl


class Segments(torch.nn.Module):  # type: ignore[misc]
    """Sums of segments, by lengths, and by the segment of each element."""

    def forward(self, x: Any, lengths: Any) -> Any:
        own = torch.repeat_interleave(lengths, output_size=x.shape[0])
        rows = x.new_zeros(lengths.shape[0], x.shape[1]).index_add(0, own, x)
        return torch.segment_reduce(x, "sum", lengths=lengths, axis=0, unsafe=True), rows


@needs_opencl
@pytest.mark.parametrize("lengths", [[2, 0, 0, 5, 1, 0], [0, 0, 8], [8]], ids=str)
def test_prefix_sums_number_segments(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "MAX_COMPARISONS", 0)
    given = torch.randn(8, 3), torch.tensor(lengths)
    plan = cuts.build(torch.export.export(Segments(), given), target="opencl")
    names = list(plan.inputs)
    found = plan.run({name: value.numpy() for name, value in zip(names, given, strict=True)})
    for name, want in zip(plan.outputs, Segments()(*given), strict=True):
        torch.testing.assert_close(torch.from_numpy(found[name]), want)
