"""Walks over IR.

They visit everything, guards included, and change nothing that they are not asked to change.

The visited values are compared with a recursion over attrs fields, which knows no class: it finds every class that
holds an index.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from cuts.ir.affine import (
    Guard,
    Index,
    Indirect,
    Primary,
    Var,
    as_index,
    evaluate,
    indirects,
    map_primaries,
    primaries,
    rename_index,
    substitute,
    variables,
)
from cuts.ir.expr import Call, Expr, IndexValue, InRange, Read
from cuts.ir.traversal import (
    distinct,
    expr_indirects,
    expr_variables,
    indices,
    map_indices,
    reads,
    rebuild,
    rename_expr,
    substitute_expr,
    tensors_read,
    walk,
)
from hypothesis import given
from hypothesis import strategies as st

from .strategies import VARIABLES, all_indices, assignments, exprs
from .strategies import indices as plain_indices

substitutions = st.dictionaries(st.sampled_from(VARIABLES), plain_indices, max_size=3)


def find_instances(value: object, *kinds: type) -> Iterator[object]:
    """Yield instances of some classes inside a value, by its fields."""
    if isinstance(value, kinds):
        yield value
    if isinstance(value, tuple):
        for item in value:
            yield from find_instances(item, *kinds)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            if field.init:
                yield from find_instances(getattr(value, field.name), *kinds)


def outermost(value: object) -> Iterator[Index]:
    """Yield a value's outermost indices."""
    if isinstance(value, Index):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from outermost(item)
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            yield from outermost(getattr(value, field.name))


@given(all_indices)
def test_every_atom_of_an_index_is_visited(index: Index) -> None:
    everything = set(find_instances(index, *Primary.__args__))  # type: ignore[attr-defined]
    assert set(primaries(index)) == everything
    assert variables(index) == {a for a in everything if isinstance(a, Var)}
    assert set(indirects(index)) == {a for a in everything if isinstance(a, Indirect)}


@given(all_indices)
def test_an_atom_comes_after_those_inside_it(index: Index) -> None:
    order = list(primaries(index))
    for position, primary in enumerate(order):
        assert all(inner in order[:position] for part in primary.parts for inner in primaries(part))


@given(exprs)
def test_walks_visit_every_index_and_guard(expr: Expr) -> None:
    assert set(indices(expr)) == set(outermost(expr))
    assert expr_variables(expr) == set(find_instances(expr, Var))
    assert set(expr_indirects(expr)) == set(find_instances(expr, Indirect))


@given(exprs)
def test_every_node_and_every_tensor_is_visited(expr: Expr) -> None:
    nodes = set(find_instances(expr, *Expr.__args__))  # type: ignore[attr-defined]
    assert set(walk(expr)) == set(distinct(expr)) == nodes
    assert set(reads(expr)) == {n for n in nodes if isinstance(n, Read)}
    assert set(tensors_read(expr)) == {
        n.tensor for n in find_instances(expr, Read, Indirect) if isinstance(n, (Read, Indirect))
    }


@given(all_indices)
def test_to_change_no_atom_is_the_identity(index: Index) -> None:
    assert map_primaries(index, lambda primary, parts: None) == index
    assert map_primaries(index, lambda primary, parts: primary.with_parts(primary.parts)) == index


@given(exprs)
def test_to_change_no_index_is_the_identity(expr: Expr) -> None:
    assert map_indices(expr, lambda index: index) == expr
    assert rebuild(expr, lambda leaf: leaf) == expr
    assert rename_expr(expr, {}) == expr


@given(exprs)
def test_what_is_one_object_stays_one(expr: Expr) -> None:
    twice = map_indices(Call("add", (expr, expr)), lambda index: index + 1)
    assert isinstance(twice, Call)
    assert twice.args[0] is twice.args[1]


@given(exprs)
def test_mapping_reaches_every_index(expr: Expr) -> None:
    moved = map_indices(expr, lambda index: Index(7))
    assert set(indices(moved)) <= {Index(7)}
    assert len(list(outermost(moved))) == len(list(outermost(expr)))


@given(exprs, substitutions)
def test_substitution_leaves_none_of_the_variables(expr: Expr, values: dict[Var, Index]) -> None:
    fresh = {v: substitute(i, {w: as_index(Var(w.name + "'", w.extent)) for w in VARIABLES}) for v, i in values.items()}
    assert not expr_variables(substitute_expr(expr, fresh)) & fresh.keys()


def test_what_no_substitution_touches_stays_the_same_object() -> None:
    i, j = Var("i", 5), Var("j", 7)
    kept = Read("x", (as_index(i),), (Guard(as_index(i) - 1, 0, 3),))
    moved = substitute_expr(Call("add", (kept, Read("y", (as_index(j),)))), {j: as_index(Var("k", 7))})
    assert isinstance(moved, Call)
    assert moved.args[0] is kept


@given(plain_indices, substitutions)
def test_substitution_by_atoms_is_substitution(index: Index, values: dict[Var, Index]) -> None:
    replaced = map_primaries(
        index, lambda primary, parts: as_index(values.get(primary, primary)) if isinstance(primary, Var) else None
    )
    for point in assignments(index, *values.values())[:200]:
        assert evaluate(replaced, point) == evaluate(substitute(index, values), point)


@given(exprs)
def test_renaming_reaches_every_tensor_and_is_invertible(expr: Expr) -> None:
    names = {tensor: f"new {n}" for n, tensor in enumerate(tensors_read(expr))}
    renamed = rename_expr(expr, names)
    assert set(tensors_read(renamed)) == set(names.values())
    assert rename_expr(renamed, {new: old for old, new in names.items()}) == expr


def test_guards_are_renamed_and_read_like_anything_else() -> None:
    where = Index(0, ((Indirect("ids", (as_index(Var("i", 4)),), 9), 1),))
    read = Read("x", (as_index(Var("i", 4)),), (Guard(where, 0, 3),))
    assert tensors_read(read) == ("x", "ids")
    assert tensors_read(InRange((Guard(where, 0, 3),))) == tensors_read(IndexValue(where)) == ("ids",)
    assert tensors_read(rename_expr(read, {"ids": "t0", "x": "t1"})) == ("t1", "t0")
    assert rename_index(where, {"ids": "t0"}).text == "t0[i]"
