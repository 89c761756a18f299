"""Factors of contractions as tensors of their own."""

from __future__ import annotations

from attrs import evolve

from ...ir import Call, Expr, Program, Read, Statement, TensorType, as_index, dtype_of, expr_variables, walk


def name_factors(program: Program) -> Program:
    """Give each computed factor of a contraction a tensor.

    A factor counts as computed where it reads several elements. Its gradient, another contraction, is then computed
    once and not for each of them: `sum(e / t * v)` is `p = e / t; sum(p * v)`.
    """
    tensors = dict(program.tensors)
    statements: list[Statement] = []
    for statement in program.statements:
        body = statement.body
        if statement.combine == "sum" and statement.step is None and isinstance(body, Call) and body.fn == "mul":
            factors = [_name_factor(f, statement, tensors, statements) for f in body.args]
            statement = evolve(statement, body=Call("mul", tuple(factors)))
        statements.append(statement)
    return evolve(program, tensors=tensors, statements=tuple(statements))


def _name_factor(
    factor: Expr, statement: Statement, tensors: dict[str, TensorType], statements: list[Statement]
) -> Expr:
    used = expr_variables(factor)
    everything = expr_variables(statement.body)
    elements = {n for n in walk(factor) if isinstance(n, Read) and tensors[n.tensor].dtype.is_float}
    if not isinstance(factor, Call) or len(elements) < 2 or used == everything:
        return factor
    axes = tuple(v for v in (*statement.axes, *statement.reduce) if v in used)
    name = f"{statement.target}_factor"
    while name in tensors:
        name += "_"
    tensors[name] = TensorType(dtype_of(factor, tensors), tuple(a.extent for a in axes))
    statements.append(Statement(name, axes, tuple(map(as_index, axes)), factor, span=statement.span))
    return Read(name, tuple(map(as_index, axes)))
