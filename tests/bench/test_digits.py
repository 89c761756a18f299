"""Networks that learn scikit-learn's digits.

The first steps are PyTorch's; `examples/digits.py` makes all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["convolutional network", "transformer"])
def test_first_steps_on_digits_are_those_of_pytorch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples"))
    import digits

    found = digits.compare(kind, "reference", 2)
    assert found["losses"] == pytest.approx(found["their_losses"], rel=1e-4)
    del sys.modules["digits"]
