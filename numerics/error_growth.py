"""Rounding-error growth of an algorithm, derived from it and its declaration.

Rounding errors are independent and proportional to the rounded value, so they grow as variances do: the variance of a
product is the product of the variances, that of a sum the sum, a table's entry counts squared. Evaluated in this
arithmetic on operands of variance 1, the declaration yields the variance of its result, and the algorithm that of
everything it adds up to get there. The root of their ratio is the factor. Winograd's F(2x2, 3x3) comes out at 1.8,
F(4x4, 3x3) at about 8.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

import numpy as np
from attrs import evolve

from ..ir import (
    Array,
    Call,
    Const,
    CutsError,
    Expr,
    Node,
    Program,
    TensorType,
    attributes_key,
    rebuild,
    rename_statement,
)
from ..ops import Instances, evaluate
from .shrunk_program import shrink_programs

#: Extent that replaces larger dims: the factor depends on filters and tiles, which are small, not on the number of
#: channels. Number of channels in a declaration that takes no other operands.
_SHRUNK_EXTENT, _SHRUNK_CHANNELS = 8, 2
#: Factors by vocabulary: a plan has many equal nodes, and plans are compared.
_FACTORS: WeakKeyDictionary[Instances, dict[Hashable, float]] = WeakKeyDictionary()


def amplification(node: Node, types: Sequence[TensorType | None], algorithm: str, instances: Instances) -> float:
    """Return the error factor of an algorithm over a node's own declaration.

    It is the ratio of expected errors, at least 1.
    """
    known = _FACTORS.setdefault(instances, {})
    key = node.op, node.declaration, tuple(types), attributes_key(node.attributes), algorithm
    if key not in known:
        known[key] = _compute_factor(node, types, algorithm, instances)
    return known[key]


def _compute_factor(node: Node, types: Sequence[TensorType | None], algorithm: str, instances: Instances) -> float:
    for smaller in _smaller(types):
        try:
            return _factor(node, smaller, algorithm, instances)
        except CutsError:  # the declaration does not take operands of these sizes
            continue
    return _factor(node, types, algorithm, instances, few=True)


def _smaller(types: Sequence[TensorType | None]) -> Iterator[list[TensorType | None]]:
    """Yield operands with smaller dims: first all large dims with one extent, then dims that are multiples of one
    number as so many, as a declaration may require one dim to be four times another.
    """
    large = sorted({n for t in types if t is not None for n in t.shape if n > _SHRUNK_EXTENT}, reverse=True)
    for unit in (0, *dict.fromkeys(n // parts for n in large for parts in (_SHRUNK_EXTENT, 4, 2, 1) if n % parts == 0)):

        def less(n: int, unit: int = unit) -> int:
            return n // unit if unit and n > _SHRUNK_EXTENT and n % unit == 0 else min(n, _SHRUNK_EXTENT)

        yield [None if t is None else TensorType(t.dtype, tuple(map(less, t.shape))) for t in types]


def _factor(
    node: Node, types: Sequence[TensorType | None], algorithm: str, instances: Instances, few: bool = False
) -> float:
    """Return the factor for operands of given types; with `few`, for shrunk programs."""
    instance = instances.of(node, types)
    if algorithm not in instance.algorithms:
        return 1.0
    known = {f: t for f, t in zip(instance.inputs, types, strict=False) if f is not None and t is not None}
    ends = {*instance.program.inputs, *instance.program.outputs}
    own = {t: t if t in ends else f"{t} of the declaration" for t in instance.program.tensors}
    programs = [_rename_tensors(instance.program, own)]
    for number, step in enumerate(instance.algorithms[algorithm]):
        made = instances.of(step, [None if v is None else known[v] for v in step.inputs])
        known.update(zip(step.outputs, made.output_types, strict=True))
        pairs = (*zip(made.inputs, step.inputs, strict=False), *zip(made.outputs, step.outputs, strict=True))
        names = {f: v for f, v in pairs if f is not None and v is not None}
        programs.append(
            _rename_tensors(made.program, {t: names.get(t, f"{t} of step {number}") for t in made.program.tensors})
        )
    direct, *steps = map(variance_program, shrink_programs(programs, _SHRUNK_CHANNELS) if few else programs)
    shapes = {t: type_.shape for program in (direct, *steps) for t, type_ in program.tensors.items()}
    values: dict[str, Array] = {f: np.ones(shapes[f]) for f in instance.inputs if f in shapes}
    found = evaluate(direct, values)
    for program in steps:
        values |= evaluate(program, {f: values[f] for f in program.inputs})
    means = {
        o: max(float(np.mean(np.asarray(found[o], dtype=np.float64))), 1e-300)
        for o in instance.outputs
        if values[o].size
    }
    return math.sqrt(max([1.0, *(float(np.max(values[o])) / mean for o, mean in means.items())]))


def _rename_tensors(program: Program, names: Mapping[str, str]) -> Program:
    """Return a program over tensors of other names."""
    return Program(
        {names[tensor]: type_ for tensor, type_ in program.tensors.items()},
        tuple(names[tensor] for tensor in program.inputs),
        tuple(names[tensor] for tensor in program.outputs),
        tuple(rename_statement(statement, names) for statement in program.statements),
        {names[tensor]: table for tensor, table in program.constants.items()},
    )


def variance_program(program: Program) -> Program:
    """Return the program for the variances of a program's results.

    It reads the variances of the operands. The program consists of sums of products.
    """
    statements = tuple(evolve(s, body=_square_coefficients(s.body)) for s in program.statements)
    return evolve(
        program,
        statements=statements,
        constants={t: tuple(v * v for v in table) for t, table in program.constants.items()},
    )


def _square_coefficients(expr: Expr) -> Expr:
    if isinstance(expr, Call) and expr.fn == "neg":
        return _square_coefficients(expr.args[0])
    if isinstance(expr, Call) and expr.fn == "sub":
        return Call("add", (_square_coefficients(expr.args[0]), _square_coefficients(expr.args[1])))
    if isinstance(expr, Call) and expr.fn == "select":
        condition, *cases = expr.args
        return Call("select", (condition, *(_square_coefficients(c) for c in cases)))
    if isinstance(expr, Call):
        return Call(expr.fn, tuple(_square_coefficients(a) for a in expr.args))
    return rebuild(
        expr, lambda leaf: Const(leaf.value**2, leaf.dtype) if isinstance(leaf, Const) and leaf.dtype.is_float else leaf
    )
