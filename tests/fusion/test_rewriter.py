"""Patterns, the def-use index and the rewriter of statements."""

from __future__ import annotations

import pytest
from cuts.ir.affine.index import Var, as_index
from cuts.ir.expr import Call, Const, Read
from cuts.ir.statement import Program, Statement
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.programs import build_programs
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.statements import (
    DefUse,
    Edit,
    Match,
    NewUnit,
    RewriteRule,
    anything,
    element,
    fn,
    number,
    pointwise,
    reduction,
    rewrite,
    rewrite_program,
)

from .build import REGISTRY, graph, op

P, J, R, S = Var("i", 4), Var("j", 4), Var("r", 6), Var("s", 6)
MEAN = pointwise(reduction("sum", element("x"), "total") / number("n"), "mean")
DIFFERENCE_SUM = reduction("sum", pointwise(element("x") - MEAN, "difference"))


def read(tensor: str, *axes: Var) -> Read:
    return Read(tensor, tuple(map(as_index, axes)))


def statement(target: str, axes: tuple[Var, ...], body: object, *reduce: Var) -> Statement:
    return Statement(target, axes, tuple(map(as_index, axes)), body, reduce, "sum" if reduce else None)  # type: ignore[arg-type]


def difference_sum(operand: str = "x", count: float = 6.0) -> Program:
    """Return the sum of differences from a mean as four statements."""
    types = {"x": (4, 6), "z": (4, 6), "t": (4,), "m": (4,), "d": (4, 6), "y": (4,)}
    found = (
        statement("t", (J,), read("x", J, S), S),
        statement("m", (P,), Call("div", (read("t", P), Const(count, DType.F32)))),
        statement("d", (P, R), Call("sub", (read(operand, P, R), read("m", P)))),
        statement("y", (J,), read("d", J, R), R),
    )
    return Program({t: TensorType(DType.F32, shape) for t, shape in types.items()}, ("x", "z"), ("y",), found)


def match_last(program: Program) -> Match | None:
    return DIFFERENCE_SUM.match_statement(program.statements[-1], DefUse.of_program(program))


def test_captures_are_over_the_axes_of_the_statement() -> None:
    found = match_last(difference_sum())
    assert found is not None
    assert found.get("x", Read) == read("x", J, R)
    assert found.get("n", Const).value == 6.0
    assert found.statement("total").target == "t"


def test_a_repeated_capture_is_one_expression() -> None:
    assert match_last(difference_sum("z")) is None


@pytest.mark.parametrize("tensor", ["t", "d"])
def test_two_definitions_are_not_followed(tensor: str) -> None:
    program = difference_sum()
    again = next(s for s in program.statements if s.target == tensor)
    index = DefUse.of_program(program)
    index.add([again])
    assert DIFFERENCE_SUM.match_statement(program.statements[-1], index) is None
    index.remove(again)
    assert DIFFERENCE_SUM.match_statement(program.statements[-1], index) is not None


def _double(match: Match, fact: bool) -> Edit:
    name = match.index.add_tensor("d", match.index.types[match.root.target])
    whole = statement(name, match.root.axes, Call("mul", (match.root.body, Const(2.0, DType.F32))))
    return {match.root: [whole, statement(match.root.target, match.root.axes, read(name, *match.root.axes))]}


def test_a_rule_replaces_statements_of_a_program() -> None:
    rule = RewriteRule(pointwise(anything() / number()), lambda match: True, _double)
    before = difference_sum()
    after = rewrite_program(before, rule)
    assert [s.target for s in after.statements if s.target in before.tensors] == ["t", "m", "d", "y"]
    assert after.tensors.keys() - before.tensors.keys() == {after.statements[1].target}
    assert rewrite_program(before, RewriteRule(rule.pattern, lambda match: None, _double)) is before


def test_new_units_get_their_reads_and_writes() -> None:
    whole = graph({"x": (4, 6)}, op("e", "exp", "x"), op("t", "reduce_sum", "e", axes=(0, 1), keepdims=False), out="t")

    def split(match: Match, fact: bool) -> Edit:
        total, (row, *others) = match.root, match.root.reduce
        name = match.index.add_tensor("rows", TensorType(DType.F32, (row.extent,)))
        part = Statement(name, (row,), (as_index(row),), total.body, tuple(others), "sum")
        rest = Statement(total.target, total.axes, total.write, read(name, row), (row,), "sum")
        return {total: [NewUnit("rows", (part,)), rest]}

    before = build_programs(whole, REGISTRY)
    after = rewrite(
        before,
        RewriteRule(reduction("sum", anything()), lambda match: len(match.root.reduce) > 1 or None, split),
    )
    verify_programs(after)
    assert [u.name.split(".")[-1] for u in after.units][-2:] == ["rows", before.units[-1].name]
    assert after.units[-2].writes == after.units[-1].reads == ("rows",)
    assert after.units[0] is before.units[0]


def test_functions_match_by_name_and_operands() -> None:
    program = difference_sum()
    difference = program.statements[2]
    index = DefUse.of_program(program)
    assert pointwise(fn("sub", anything("a"), anything("b"))).match_statement(difference, index) is not None
    assert pointwise(fn("add", anything("a"), anything("b"))).match_statement(difference, index) is None
    assert pointwise(anything("a") - anything("a")).match_statement(difference, index) is None
