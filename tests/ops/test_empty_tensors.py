"""Dims of 0.

Results without elements need no kernel, reductions over nothing are their identity, and operations without a meaning
there say so.
"""

from __future__ import annotations

from typing import Any

import cuts
import numpy as np
import pytest
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType, dtype_of_numpy
from cuts.ops.language import Registry
from cuts.tests.needs import needs_opencl
from hypothesis import given, settings
from hypothesis import strategies as st


def graph(op: str, *operands: np.ndarray, **attributes: Any) -> Graph:
    """A graph of one node."""
    names = tuple(f"x{n}" for n in range(len(operands)))
    types = {name: TensorType(dtype_of_numpy(x.dtype), x.shape) for name, x in zip(names, operands, strict=True)}
    found = Registry.builtin().instances.infer(Node("node", op, names, (), attributes), list(types.values()))
    results = tuple(f"y{n}" for n in range(len(found)))
    node = Node("node", op, names, results, attributes)
    return Graph("empty", names, results, types | dict(zip(results, found, strict=True)), (node,))


def run(target: str, op: str, *operands: np.ndarray, **attributes: Any) -> tuple[int, np.ndarray]:
    """Return how many kernels an operation takes, and its first result."""
    plan = cuts.build(graph(op, *operands, **attributes), target=target)
    return len(plan.kernels), plan.run({f"x{n}": x for n, x in enumerate(operands)})["y0"]


def f(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def i64(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


NO_ELEMENTS: dict[str, tuple[tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "relu": ((f(0, 3),), {}, (0, 3)),
    "add": ((f(0, 3), f(3)), {}, (0, 3)),
    "matmul": ((f(0, 4), f(4, 3)), {}, (0, 3)),
    "conv": ((f(0, 3, 8, 8), f(4, 3, 3, 3)), {}, (0, 4, 6, 6)),
    "softmax": ((f(2, 0),), {}, (2, 0)),
    "layer_norm": ((f(0, 4), f(4), f(4)), {}, (0, 4)),
    "reshape": ((f(0, 4),), {"shape": (2, 0, 2), "allowzero": True}, (2, 0, 2)),
    "transpose": ((f(0, 4, 2),), {"perm": (2, 1, 0)}, (2, 4, 0)),
    "tile": ((f(0, 2),), {"repeats": (2, 3)}, (0, 6)),
    "gather": ((f(5, 3), i64(0)), {}, (0, 3)),
    "concat": ((f(2, 0), f(2, 0)), {"axis": 1}, (2, 0)),
    "top_k": ((f(0, 4),), {"k": 2}, (0, 2)),
    "argmax": ((f(0, 4),), {"axis": 1}, (0, 1)),
}


@needs_opencl
@pytest.mark.parametrize("op", NO_ELEMENTS)
def test_a_result_of_no_elements_needs_no_kernel(op: str) -> None:
    operands, attributes, shape = NO_ELEMENTS[op]
    kernels, found = run("opencl", op, *operands, **attributes)
    assert (kernels, found.shape) == (0, shape)
    assert run("reference", op, *operands, **attributes)[1].shape == shape


FILLED_CASES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Any]] = {
    "reduce_sum": ((f(2, 0),), {"axes": (1,)}, 0),
    "reduce_prod": ((f(2, 0),), {"axes": (1,)}, 1),
    "reduce_max": ((f(2, 0),), {"axes": (1,)}, -np.inf),
    "reduce_min": ((i64(2, 0),), {"axes": (1,)}, np.iinfo(np.int64).max),
    "reduce_mean": ((f(2, 0),), {"axes": (1,)}, np.nan),
    "reduce_log_sum_exp": ((f(2, 0),), {"axes": (1,)}, -np.inf),
    "matmul": ((f(2, 0), f(0, 3)), {}, 0),
    "pad": ((f(0, 2),), {"pads": (1, 0, 1, 0), "value": 7.0}, 7),
}


@needs_opencl
@pytest.mark.parametrize("op", FILLED_CASES)
def test_a_reduction_over_nothing_is_its_identity(op: str) -> None:
    operands, attributes, value = FILLED_CASES[op]
    for target in ("opencl", "reference"):
        found = run(target, op, *operands, **attributes)[1]
        assert found.size
        np.testing.assert_array_equal(found, np.full(found.shape, value))


@needs_opencl
@given(st.lists(st.integers(0, 3), min_size=2, max_size=4), st.integers(0, 3), st.booleans())
@settings(max_examples=12)
def test_empty_parts_of_a_concatenation_vanish(widths: list[int], rows: int, relu: bool) -> None:
    parts = [f(rows, width) for width in widths]
    made = graph("concat", *parts, axis=1)
    if relu:  # the statement that writes the parts vanishes with them
        nodes = tuple(Node(f"relu {n}", "relu", (f"x{n}",), (f"r{n}",)) for n in range(len(parts)))
        types = made.types | {f"r{n}": made.types[f"x{n}"] for n in range(len(parts))}
        joined = Node("node", "concat", tuple(f"r{n}" for n in range(len(parts))), ("y0",), {"axis": 1})
        made = Graph("empty", made.inputs, ("y0",), types, (*nodes, joined))
        parts = [np.maximum(part, 0) for part in parts]
    found = cuts.build(made, target="opencl").run({f"x{n}": f(rows, width) for n, width in enumerate(widths)})["y0"]
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=1))


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "message"),
    [
        (
            "argmax",
            (f(2, 0),),
            {"axis": 1},
            r"op 'argmax': expected elements, found none: no element is the greatest of an empty axis",
        ),
        (
            "gather",
            (f(0, 3), i64(2)),
            {},
            r"'x' is f32\[0, 3\]: an element of it is read, but it has none along axis 0",
        ),
        (
            "reduce_mean",
            (i64(2, 0),),
            {"axes": (1,)},
            r"op 'reduce_mean': an integer is divided by zero\n(.*\n)+.* convert the operand",
        ),
        (
            "reshape",
            (f(0, 4),),
            {"shape": (2, 3), "allowzero": True},
            r"\[2, 3\] does not hold the 0 elements of shape \[0, 4\]",
        ),
    ],
)
def test_what_has_no_meaning_says_so(
    op: str, operands: tuple[Any, ...], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(cuts.CutsError, match=message):
        graph(op, *operands, **attributes)


@needs_opencl
def test_a_plan_with_empty_tensors_is_reopened(tmp_path: Any) -> None:
    plan = cuts.build(graph("concat", f(2, 0), f(2, 3), axis=1), target="opencl")
    plan.save(tmp_path / "p")
    inputs = {"x0": f(2, 0), "x1": f(2, 3)}
    np.testing.assert_array_equal(cuts.load(tmp_path / "p").run(inputs)["y0"], f(2, 3))
    assert plan.plan.types["x0"] == TensorType(DType.F32, (2, 0))
