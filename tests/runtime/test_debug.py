"""Debug mode.

An index from data that is out of range is an error that names it. Without it no access leaves its tensor.
"""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from cuts.tests.needs import needs_opencl
from cuts.tests.ops.test_empty_tensors import graph
from hypothesis import given, settings
from hypothesis import strategies as st


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def named_inputs(*operands: np.ndarray) -> dict[str, np.ndarray]:
    return {f"x{n}": x for n, x in enumerate(operands)}


WRONG: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any], str]] = {
    "gather": (
        (f(5, 3), ints(0, 7, -6)),
        {},
        r"operand 'indices' \(value 'x1'\): expected indices from -5 to 4, found 7 at \[1\]",
    ),
    "gather_elements": (
        (f(3, 2), ints([0, 1], [2, -4])),
        {},
        r"'indices' .*: expected indices from -3 to 2, found -4 at \[1, 1\]",
    ),
    "gather_nd": ((f(3, 4), ints([0, 1], [2, 9])), {}, r"expected indices from -4 to 3, found 9 at \[1, 1\]"),
    "scatter_elements": (
        (f(3, 3), ints([0, 1, 5]), f(1, 3)),
        {},
        r"expected indices from -3 to 2, found 5 at \[0, 2\]",
    ),
    "scatter_nd": ((f(3, 3), ints([0], [-4]), f(2, 3)), {}, r"expected indices from -3 to 2, found -4 at \[1, 0\]"),
    "embedding_bag": (
        (f(4, 2), ints([0, 9], [1, 9]), f(2, 2), ints(1, 2)),
        {},
        r"expected indices from -4 to 3, found 9 at \[1, 1\]",
    ),
    "max_unpool": (
        (f(1, 1, 1, 2), ints([[[5, 99]]])),
        {"sizes": (4, 4)},
        r"expected indices from -16 to 15, found 99 at \[0, 0, 0, 1\]",
    ),
    "reverse_sequence": (
        (f(4, 2), ints(2, 6)),
        {},
        r"intermediate 'from': expected indices from -4 to 3, found 5 at \[0, 1\]",
    ),
}


@needs_opencl
@pytest.mark.parametrize("op", WRONG)
def test_out_of_range_index_fails_in_debug_mode(op: str) -> None:
    operands, attributes, message = WRONG[op]
    made = graph(op, *operands, **attributes)
    plan = cuts.build(made, target="opencl", debug=True)
    with pytest.raises(cuts.CutsError, match=rf"node 'node' \({op}\): .*{message}; correct the integers"):
        plan.run(named_inputs(*operands))
    with pytest.raises(cuts.CutsError, match=message):  # the reference checks always
        plan.reference(named_inputs(*operands))
    cuts.build(made, target="opencl").run(named_inputs(*operands))  # without checks it computes something


@needs_opencl
def test_without_checks_nearest_element_is_read() -> None:
    x, ids = f(5, 3), ints(9, -9)
    plan = cuts.build(graph("gather", x, ids), target="opencl")
    np.testing.assert_array_equal(plan.run(named_inputs(x, ids))["y0"], x[[4, 0]])
    operands = (x, ints([9], [-9]), f(2, 3))
    np.testing.assert_array_equal(
        cuts.build(graph("scatter_nd", *operands), target="opencl").run(named_inputs(*operands))["y0"], x
    )


PLAN: list[cuts.CompiledPlan] = []


@needs_opencl
@given(st.lists(st.integers(-7, 6), min_size=4, max_size=4))
@settings(max_examples=30)
def test_errors_are_exactly_those_of_numpy(ids: list[int]) -> None:
    if not PLAN:
        PLAN.append(cuts.build(graph("gather", f(5, 3), ints(0, 0, 0, 0)), target="opencl", debug=True))
    wrong = [(n, value) for n, value in enumerate(ids) if not -5 <= value < 5]
    if not wrong:
        np.testing.assert_array_equal(PLAN[0].run(named_inputs(f(5, 3), ints(*ids)))["y0"], f(5, 3)[ids])
        return
    with pytest.raises(cuts.CutsError, match=rf"found {wrong[0][1]} at \[{wrong[0][0]}\]"):
        PLAN[0].run(named_inputs(f(5, 3), ints(*ids)))


@needs_opencl
def test_a_saved_plan_keeps_its_checks(tmp_path: Any) -> None:
    x, ids = f(5, 3), ints(0, 7)
    cuts.build(graph("gather", x, ids), target="opencl", debug=True).save(tmp_path / "p")
    plan = cuts.load(tmp_path / "p")
    with pytest.raises(cuts.CutsError, match=r"found 7 at \[1\]"):
        plan.run(named_inputs(x, ids))
    assert list(plan.run(named_inputs(x, ints(0, 4)))) == ["y0"]


@needs_opencl
def test_constant_indices_are_checked_at_compile_time() -> None:
    made = graph("gather", f(5, 3), ints(0, 7))
    fixed = cuts.Graph(made.name, ("x0",), made.outputs, made.types, made.nodes, {"x1": ints(0, 7)})
    with pytest.raises(cuts.CutsError, match=r"found 7 at \[1\]"):
        cuts.build(fixed, target="opencl", debug=True)
