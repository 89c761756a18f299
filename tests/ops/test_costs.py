"""Derived work and traffic, against enumeration and DeepCuts' Tables 6 to 8.

The tables are compared formula by formula.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from cuts.ir.affine import Var, evaluate
from cuts.ir.expr import Call
from cuts.ir.functions import FUNCTIONS
from cuts.ir.statement import Program, Statement
from cuts.ir.traversal import expr_variables, walk
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.costs import flops, footprints, full_tile, program_costs
from cuts.ops.language.classify import AxisClass, classify_axes, is_complex
from hypothesis import given, settings
from hypothesis import strategies as st

from .expansion import Expansion, operations

REGISTRY = Registry.builtin()
TRANS = 8


def program(op: str, *shapes: tuple[int, ...], **attributes: Any) -> Program:
    return REGISTRY[op].instantiate([TensorType(DType.F32, s) for s in shapes], attributes).program


def tile_of(statement: Statement, **extents: int) -> dict[Var, int]:
    """Return a tile by axis names; other axes keep their full extent."""
    return {v: extents.get(v.name, v.extent) for v in (*statement.axes, *statement.reduce)}


def enumerate_points(tile: Mapping[Var, int]) -> list[dict[Var, int]]:
    return [dict(zip(tile, point, strict=True)) for point in itertools.product(*map(range, tile.values()))]


CASES = [
    ("conv", ((2, 4, 7, 6), (6, 4, 3, 2)), {"strides": (2, 1), "dilations": (1, 3)}),
    ("conv", ((1, 4, 9, 9), (6, 2, 2, 3)), {"groups": 2, "strides": (3, 2), "dilations": (2, 3)}),
    ("matmul", ((2, 3, 4), (4, 5)), {}),
    ("max_pool", ((1, 3, 8, 7),), {"kernel_shape": (3, 2), "strides": (2, 3)}),
    ("batch_norm", ((2, 3, 4, 5), (3,), (3,), (3,), (3,)), {}),
    ("add", ((2, 3, 4), (3, 1)), {}),
    ("depth_to_space", ((1, 8, 2, 3),), {"blocksize": 2}),
    ("transpose", ((2, 3, 4),), {}),
    ("softmax", ((3, 5),), {}),
]


@settings(deadline=None, max_examples=60)
@given(case=st.sampled_from(CASES), data=st.data())
def test_counts_equal_those_of_the_enumerated_index_set(case: tuple[str, Any, Any], data: st.DataObject) -> None:
    op, shapes, attributes = case
    prog = program(op, *shapes, **attributes)
    statement = data.draw(st.sampled_from(prog.statements))
    tile = {v: data.draw(st.integers(1, v.extent)) for v in (*statement.axes, *statement.reduce)}
    points = enumerate_points(tile)
    for read, found in zip(statement.reads, footprints(statement, prog.tensors, tile), strict=True):
        elements = {tuple(evaluate(i, p) for i in read.indices) for p in points}
        assert found.elements == len(elements)
        assert found.widths == tuple(max(axis) - min(axis) + 1 for axis in zip(*elements, strict=True))
    distinct = {
        node: {tuple(p[v] for v in sorted(expr_variables(node), key=str)) for p in points}
        for node in walk(statement.body)
    }
    work = sum(FUNCTIONS[node.fn].flops * len(values) for node, values in distinct.items() if isinstance(node, Call))
    assert flops(statement, tile) == work + (len(points) if statement.combine else 0)


def test_many_tiles_at_once_equal_one_by_one() -> None:
    prog = program("conv", (2, 8, 20, 20), (16, 8, 3, 3), pads=(1, 1, 1, 1))
    (statement,) = prog.statements
    tiles = [
        tile_of(statement, n=1, k=k, o0=h, o1=w, c=c) for k in (1, 8) for h in (1, 4) for w in (8, 20) for c in (2, 8)
    ]
    together = {v: np.array([t[v] for t in tiles]) for v in tiles[0]}
    np.testing.assert_array_equal(flops(statement, together), [flops(statement, t) for t in tiles])
    for n, found in enumerate(footprints(statement, prog.tensors, together)):
        each = [footprints(statement, prog.tensors, t)[n] for t in tiles]
        np.testing.assert_array_equal(found.elements, [f.elements for f in each])
        np.testing.assert_array_equal(found.transactions(TRANS), [f.transactions(TRANS) for f in each])


def ceil(a: int, b: int) -> int:
    return -(-a // b)


#: Tiles of one thread block, as the paper names them.
N, K, H, W, C, F, S, D = 2, 16, 4, 8, 12, 3, 2, 1
H_IN, W_IN = (H - 1) * S + (F - 1) * D + 1, (W - 1) * S + (F - 1) * D + 1


@frozen
class Row:
    """Row of a table: paper's and corrected formula, printed and derived value."""

    title: str
    paper: str
    corrected: str
    expected: int
    derived: int


def tiles() -> dict[str, tuple[Program, dict[Var, int]]]:
    """Return a program of each kind of operation, and its tile."""
    conv = program("conv", (4, C, 64, 64), (32, C, F, F), strides=(S, S), pads=(1, 1, 1, 1))
    matmul = program("matmul", (64, 256), (256, 64))
    norm = program("batch_norm", (4, 32, 64, 64), (32,), (32,), (32,), (32,))
    pool = program("max_pool", (4, 32, 64, 64), kernel_shape=(F, F), strides=(S, S))
    unary, binary = program("relu", (4, 32, 64, 64)), program("add", (4, 32, 64, 64), (4, 32, 64, 64))
    return {
        "conv": (conv, tile_of(conv.statements[0], n=N, k=K, o0=H, o1=W)),
        "matmul": (matmul, tile_of(matmul.statements[0], m0=N, n0=K, k=C)),
        "norm": (norm, tile_of(norm.statements[0], n=N, c=K, i0=H, i1=W)),
        "pool": (pool, tile_of(pool.statements[0], n=N, c=K, o0=H, o1=W)),
        "unary": (unary, tile_of(unary.statements[0], i0=N, i1=K, i2=H, i3=W)),
        "binary": (binary, tile_of(binary.statements[0], i0=N, i1=K, i2=H, i3=W)),
    }


TILES = tiles()


def work(op: str) -> int:
    """Return the derived operations of a tile."""
    prog, tile = TILES[op]
    return int(flops(prog.statements[0], tile))


def traffic(op: str, what: str) -> int:
    """Return the derived elements, accesses or transactions that a tile reads."""
    prog, tile = TILES[op]
    found = footprints(prog.statements[0], prog.tensors, tile)
    return sum(f.transactions(TRANS) if what == "transactions" else getattr(f, what) for f in found)


def table_6() -> list[Row]:
    """Operations.

    The paper leaves out a norm's work per channel: var + eps, its root, times scale.
    """
    same = "the same"
    return [
        Row("convolution", "2 N C K H W FH FW", same, 2 * N * C * K * H * W * F * F, work("conv")),
        Row("matrix product", "2 N C K", same, 2 * N * C * K, work("matmul")),
        Row("batch norm", "3 N K H W", "3 N K H W + 3 K", 3 * N * K * H * W + 3 * K, work("norm")),
        Row("pooling", "N K H W FH FW", same, N * K * H * W * F * F, work("pool")),
        Row("elementwise", "N K H W", same, N * K * H * W, work("unary")),
    ]


def table_7() -> list[Row]:
    """Elements.

    The paper prints the output size of a convolution where the input tile (H-1)S + (F-1)D + 1 belongs, and divides the
    weights by a transaction's width, which belongs to Table 8. Scale, bias, mean and variance are four vectors.
    """
    paper, corrected = "N C ((H+FH-2PH)/SH+1)(..) + K C FW FH / TRANS", "N C Hin Win + K C FH FW"
    image = N * K * H * W
    return [
        Row("convolution", paper, corrected, N * C * H_IN * W_IN + K * C * F * F, traffic("conv", "elements")),
        Row("matrix product", "N C + C K", "the same", N * C + C * K, traffic("matmul", "elements")),
        Row("batch norm", "N K H W + 3 K", "N K H W + 4 K", image + 4 * K, traffic("norm", "elements")),
        Row("pooling", "N K H W FH FW", "the same, as accesses", image * F * F, traffic("pool", "accesses")),
        Row("elementwise unary", "N K H W", "the same", image, traffic("unary", "elements")),
        Row("elementwise binary", "2 N K H W", "the same", 2 * image, traffic("binary", "elements")),
    ]


def table_8() -> list[Row]:
    """Transactions, none of them across two rows.

    The division by TRANS is rounded up per row. `H W / (W / TRANS)` means H ceil(W / TRANS).
    """

    def row(title: str, op: str, paper: str, corrected: str, expected: int) -> Row:
        return Row(title, paper, corrected, expected, traffic(op, "transactions"))

    image, weights = N * C * H_IN * ceil(W_IN, TRANS), ceil(K * C * F * F, TRANS)
    rows, line = N * K * H * ceil(W, TRANS), "N K H ceil(W / TRANS)"
    paper, corrected = (
        "N C (..)(..) / TRANS + ceil(K C FW FH / TRANS)",
        "N C Hin ceil(Win / TRANS) + ceil(K C FH FW / TRANS)",
    )
    product = N * ceil(C, TRANS) + C * ceil(K, TRANS)
    pooled = N * K * H_IN * ceil(W_IN, TRANS)
    return [
        row("convolution", "conv", paper, corrected, image + weights),
        row("matrix product", "matmul", "N ceil(C / TRANS) + C ceil(K / TRANS)", "the same", product),
        row("batch norm", "norm", "N K H W / (W / TRANS) + 3 (K / TRANS)", f"{line} + 4 ceil(K / TRANS)",
            rows + 4 * ceil(K, TRANS)),
        row("pooling", "pool", "N K (..)(..) / TRANS", "N K Hin ceil(Win / TRANS)", pooled),
        row("elementwise unary", "unary", "N K H W / (W / TRANS)", line, rows),
        row("elementwise binary", "binary", "2 N K H W / (W / TRANS)", f"2 {line}", 2 * rows),
    ]  # fmt: skip


@pytest.mark.parametrize("table", [table_6, table_7, table_8])
def test_tables_of_the_paper_are_derived(table: Callable[[], list[Row]]) -> None:
    for row in table():
        print(f"{row.title:20} paper {row.paper:50} corrected {row.corrected:52} = {row.expected}, {row.derived}")
    assert [(row.title, row.derived) for row in table()] == [(row.title, row.expected) for row in table()]


def test_rows_that_are_whole_in_memory_join() -> None:
    prog = program("relu", (4, 6, 8))
    found = footprints(prog.statements[0], prog.tensors, tile_of(prog.statements[0], i0=2, i1=6, i2=8))[0]
    assert (found.row, found.rows) == (96, 1)
    found = footprints(prog.statements[0], prog.tensors, tile_of(prog.statements[0], i0=2, i1=3, i2=8))[0]
    assert (found.row, found.rows) == (24, 2)


def test_winograd_transforms_fold_to_the_textbook_counts() -> None:
    # Table 6 prints 2.25 operations per element: that is 36 / 16, the growth of the data in F(4x4, 3x3), not a count of
    # operations.
    counts = {op: operations(Expansion(program(op, s)).results()) for op, s in
              [("winograd_input", (1, 1, 4, 4)), ("winograd_filter", (1, 1, 3, 3)),
               ("winograd_output", (4, 4, 1, 1, 1, 1))]}  # fmt: skip
    assert counts["winograd_input"].total() == counts["winograd_input"]["add"] + counts["winograd_input"]["sub"] == 32
    assert counts["winograd_output"].total() == 24
    assert counts["winograd_filter"]["add"] + counts["winograd_filter"]["sub"] == 28


def test_folding_keeps_the_value() -> None:
    from cuts.ir.expr import Const, Expr, Read
    from cuts.ops.reference import evaluate as run

    prog = program("winograd_filter", (2, 1, 3, 3))
    w = np.random.default_rng(1).standard_normal((2, 1, 3, 3))

    def value(e: Expr) -> float:
        if isinstance(e, Read):
            return float(w[tuple(i.const for i in e.indices)])
        return float(e.value) if isinstance(e, Const) else FUNCTIONS[e.fn].numpy(*map(value, e.args))

    np.testing.assert_allclose(
        [value(e) for e in Expansion(prog).results()], run(prog, {"w": w})["u"].reshape(-1), atol=1e-12
    )


def test_axes_are_classified_by_the_operands_they_index() -> None:
    def classes(op: str, *shapes: tuple[int, ...], **attributes: Any) -> dict[str, str]:
        return {v.name: c.value for v, c in classify_axes(program(op, *shapes, **attributes).statements[0]).items()}

    assert classes("conv", (2, 4, 8, 8), (6, 4, 3, 3)) == {
        "n": "N", "k": "M", "o0": "N", "o1": "N", "c": "reduced", "r0": "reduced", "r1": "reduced",
    }  # fmt: skip
    assert classes("conv", (1, 4, 8, 8), (4, 1, 3, 3), groups=4) == {
        "k": "batch",
        "o0": "N",
        "o1": "N",
        "r0": "reduced",
        "r1": "reduced",
    }
    assert classes("conv", (1, 4, 8, 8), (6, 2, 1, 1), groups=2) == {
        "k_o": "batch",
        "k_i": "M",
        "o0": "N",
        "o1": "N",
        "c": "reduced",
    }
    assert classes("matmul", (5, 3, 4), (5, 4, 2)) == {"i0": "batch", "m0": "M", "n0": "N", "k": "reduced"}
    assert classes("relu", (3, 4)) == {"i0": "batch", "i1": "batch"}
    assert set(AxisClass) == {AxisClass.M, AxisClass.N, AxisClass.BATCH, AxisClass.REDUCED}


def is_complex_program(program: Program) -> bool:
    return any(is_complex(statement, program.constants) for statement in program.statements)


def test_complex_operations_are_those_of_table_2() -> None:
    assert is_complex_program(program("conv", (1, 4, 8, 8), (6, 4, 3, 3)))
    assert is_complex_program(program("matmul", (3, 4), (4, 5)))
    for op, shapes, attributes in CASES:
        if op not in ("conv", "matmul"):
            assert not is_complex_program(program(op, *shapes, **attributes)), op
    assert not is_complex_program(program("layer_norm", (4, 8), (8,), (8,)))
    assert not is_complex_program(program("winograd_input", (1, 2, 6, 6)))


def test_program_costs_count_each_operand_once() -> None:
    costs = program_costs(program("softmax", (8, 16)))
    assert (costs.bytes_read, costs.bytes_written) == (8 * 16 * 4, 8 * 16 * 4)
    assert costs.flops == math.prod((8, 16)) * 5
    assert full_tile(program("relu", (3,)).statements[0])
