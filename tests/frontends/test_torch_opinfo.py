"""PyTorch's own samples of its operations, forward and gradients, against eager.

A run takes one part of the operations, another one each day; `--tier all` takes all. `opinfo.toml` has the operations
that are refused or differ, each with its cause.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # PyTorch's samples need it

from cuts.tests.frontends.opinfo import PARTS, entries, findings, full_name, operations
from cuts.tests.tiers import part_of_the_day

pytestmark = pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="opinfo.toml is for PyTorch 2.13")


def _check(part: int, gradients: bool) -> None:
    refused, different = entries("refused"), entries("different")
    faults = []
    for operation in operations(part_of_the_day(part, PARTS)):
        name = full_name(operation)
        found = list(findings(operation, gradients)) if operation.supports_autograd or not gradients else []
        for each in found:
            known = refused if each.kind == "refused" else different
            if name not in known:
                faults.append(f"{name}: {each.kind}: {each.text}")
    assert not faults, "a fault, or an entry of opinfo.toml:\n" + "\n".join(faults)


@pytest.mark.parametrize("part", range(PARTS))
def test_samples_are_eagers(part: int) -> None:
    _check(part, False)


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients_of_samples_are_eagers(part: int) -> None:
    _check(part, True)


def test_known_refusals_still_occur() -> None:
    listed = {full_name(op): op for part in range(PARTS) for op in operations(part)}
    names = [*entries("refused"), *entries("different")]
    assert not [name for name in names if name not in listed]
    chosen = names[part_of_the_day(0, len(names))]
    kinds = {each.kind == "refused" for wanted in (False, True) for each in findings(listed[chosen], wanted)}
    assert (chosen in entries("refused")) in kinds, f"{chosen} agrees: remove it from opinfo.toml"
