"""Bounded graphs of functions, with NaN in their padding, against eager.

A run takes one part of `sized_functions.txt`, another one each day; `--tier all` takes all.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from cuts.tests.frontends.sized_functions import difference, sized_functions
from cuts.tests.tiers import part_of_the_day

#: Parts of the file, each of half a second.
PARTS = 64


@pytest.mark.parametrize("part", range(PARTS))
def test_each_size_is_eagers(part: int) -> None:
    chosen = list(sized_functions())[part_of_the_day(part, PARTS) :: PARTS]
    found = {f"{each.shapes} {each.expression}": difference(each) for each in chosen}
    assert not {name: text for name, text in found.items() if text}
