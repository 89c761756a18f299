"""Lone pieces: a sum among zeros becomes a dense tensor.

Where the stride of a convolution is greater than its filters, one piece of its gradient is a sum and all others
are zero. The sum is then a dense tensor of its own, and an elementwise statement spreads it: it fuses with readers of
the whole, and writes whole lines, where kernels for pieces would write scattered elements:

    dx[2*t] = sum[k] w[k] * dy[k, t];   dx[2*t + 1] = 0
      ->   p[t] = sum[k] w[k] * dy[k, t];   dx[i] = p[i // 2] if i % 2 == 0 else 0
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from attrs import evolve

from ...ir import Const, Guard, Index, Program, Read, Statement, TensorType, Var, as_index
from ...ops.language import canonicalise, unused_name
from .stride_residues import MIN_TERMS


def separate_lone_pieces(program: Program) -> Program:
    """Return the program with lone sums as dense tensors.

    Separate statements spread them.
    """
    tensors, statements = dict(program.tensors), list(program.statements)
    for target in dict.fromkeys(s.target for s in program.statements):
        pieces = [s for s in program.statements if s.target == target]
        found = _lone(pieces)
        if found is None:
            continue
        name = unused_name(f"{target}_piece", tensors)
        type_ = program.tensors[target]
        tensors[name] = TensorType(type_.dtype, tuple(a.extent for a in found.axes))
        alone = evolve(found, target=name, write=tuple(map(as_index, found.axes)))
        last = statements.index(pieces[-1])
        statements[last : last + 1] = [pieces[-1], alone, canonicalise(_spread_statement(found, name, type_))]
        statements = [s for s in statements if s not in pieces]
    return evolve(program, tensors=tensors, statements=tuple(statements))


def _lone(pieces: Sequence[Statement]) -> Statement | None:
    """Return the piece that is a long sum, written at multiples of its axes, where all others are zero."""
    sums = [s for s in pieces if s.combine == "sum" and prod(v.extent for v in s.reduce) >= MIN_TERMS]
    others = [s for s in pieces if s not in sums]
    if len(sums) != 1 or not others or any(s.step is not None or s.into is not None for s in pieces):
        return None
    (found,) = sums
    if not all(s.is_pointwise and isinstance(s.body, Const) and s.body.value == 0 for s in others):
        return None
    places = [_scaled_variable(index) for index in found.write]
    used = [var for place in places if place is not None for var in place[:1] if var is not None]
    return found if None not in places and sorted(used, key=str) == sorted(found.axes, key=str) else None


def _scaled_variable(index: Index) -> tuple[Var | None, int] | None:
    """Return the variable of an index `n * v + first`, with n; no variable for a constant."""
    if not index.terms:
        return None, 1
    (primary, factor), *rest = index.terms
    return (primary, factor) if isinstance(primary, Var) and factor > 0 and not rest else None


def _spread_statement(piece: Statement, name: str, type_: TensorType) -> Statement:
    """Return the statement that writes a whole tensor from its only piece that is not zero."""
    axes = tuple(Var(f"e{n}", extent) for n, extent in enumerate(type_.shape))
    tests: list[Guard] = []
    values: dict[Var, Index] = {}
    for axis, index in zip(axes, piece.write, strict=True):
        place = _scaled_variable(index)
        assert place is not None
        var, factor = place
        moved = as_index(axis) - index.const
        if var is None:
            tests.append(Guard(moved, 0, 1))
            continue
        values[var] = moved // factor
        tests += [Guard(moved % factor, 0, 1), Guard(values[var], 0, var.extent)]
    kept = tuple(test for test in tests if not test.always)
    body = Read(name, tuple(values[a] for a in piece.axes), kept, 0.0)
    wide = tuple(a for a in axes if a.extent > 1)
    write = tuple(as_index(a) if a.extent > 1 else as_index(0) for a in axes)
    return Statement(piece.target, wide, write, body, span=piece.span)
