"""Writers of shared tensors apply functions of readers that change no digit."""

from __future__ import annotations

import pytest
from cuts.ir import FusedGroup, parse_ir
from cuts.passes.fusion.grouping.writer_functions import apply_by_writer
from cuts.passes.fusion.interpret import interpret

from ..kernels.cases import arrays

GROUP = """var p < 4, c < 6, r < 3, q < 4, o < 5, d < 6

group {
  tensor "x": f16[4, 6, 3]
  tensor "f": f16[5, 6]
  tensor "u": f16[4, 6]
  tensor t: f32[4, 6]
  tensor "y": f16[4, 5]
  tensor z: f32[4, 5]
  inputs "x", "f"
  outputs "y"
  shared "u"
  segment (p, c) {
    reduce t = sum over (r) of "x"[p, c, r]
    output "u"[p, c] = f16(t[p, c])
  }
  segment (q, o) {
    reduce z = sum over (d) of "f"[o, d] * READ
    output "y"[q, o] = f16(z[q, o])
  }
}
"""


@pytest.mark.parametrize(
    ("read", "moves"),
    [
        ('min(max("u"[q, d], 0.0:f16), 6.0:f16)', True),
        ('max("u"[q, d], neg("u"[q, d]))', True),
        ('exp("u"[q, d])', False),
        ('max("u"[q, d if 0 <= q < 3 else 0], 1.0:f16)', False),
        ('"u"[q, d]', False),
    ],
)
def test_writers_apply_exact_functions(read: str, moves: bool) -> None:
    group = parse_ir(GROUP.replace("READ", read))
    assert isinstance(group, FusedGroup)
    made = apply_by_writer(group)
    assert (made != group) == moves
    inputs = arrays(group, 1)
    assert (interpret(made, inputs)["y"] == interpret(group, inputs)["y"]).all()


def test_functions_in_results_are_applied_once() -> None:
    group = parse_ir(GROUP.replace("READ", '"f"[o, d]').replace("f16(z[q, o])\n", 'neg("u"[q, o])\n'))
    assert isinstance(group, FusedGroup)
    made, inputs = apply_by_writer(group), arrays(group, 1)
    assert made != group
    assert (interpret(made, inputs)["y"] == interpret(group, inputs)["y"]).all()
