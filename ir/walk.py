"""Traversal and rewriting of indices and scalar expressions.

The class of each kind of primary or of node defines its parts and its reconstruction, so that a new kind is walked
everywhere. *Every* index of an expression means those of guards too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import is_

from .expr import Expr, Guard, MoveGuards, MoveIndex, Read
from .index import Index, IndexLike, Indirect, Primary, Var, as_index

# ---- indices


def primaries(index: Index) -> Iterator[Primary]:
    """Yield every primary of an index, those inside a primary before it."""
    for primary, _ in index.terms:
        for part in primary.parts:
            yield from primaries(part)
        yield primary


@lru_cache(maxsize=1 << 17)
def variables(index: Index) -> frozenset[Var]:
    """Return every variable that occurs anywhere in the index."""
    found: set[Var] = set()
    for primary, _ in index.terms:
        if isinstance(primary, Var):
            found.add(primary)
        for part in primary.parts:
            found |= variables(part)
    return frozenset(found)


@lru_cache(maxsize=1 << 17)
def indirects(index: Index) -> tuple[Indirect, ...]:
    """Return every indirect read anywhere in the index, inner ones first."""
    return tuple(dict.fromkeys(primary for primary in primaries(index) if isinstance(primary, Indirect)))


def order_lookups_last(guards: Iterable[Guard]) -> tuple[Guard, ...]:
    """Return guards once each, with those that look up elements last.

    They are tested from left to right, and the others bound the lookups.
    """
    return tuple(sorted(dict.fromkeys(guards), key=lambda guard: bool(indirects(guard.index))))


def map_primaries(index: Index, change: Callable[[Primary, tuple[Index, ...]], Index | None]) -> Index:
    """Rebuild an index, simplified, with some primaries replaced.

    `change` gets each primary and its new parts, and returns its replacement; None keeps its kind.
    """
    result = Index(index.const)
    for primary, factor in index.terms:
        parts = tuple(map_primaries(part, change) for part in primary.parts)
        changed = change(primary, parts)
        result = result + (primary.with_parts(parts) if changed is None else changed) * factor
    return result


def substitute(index: Index, values: Mapping[Var, IndexLike]) -> Index:
    """Replace variables and simplify again."""
    if not any(v in values for v in variables(index)):
        return index
    result = Index(index.const)
    for primary, factor in index.terms:
        if isinstance(primary, Var):
            part = as_index(values.get(primary, primary))
        else:
            part = primary.with_parts(tuple(substitute(p, values) for p in primary.parts))
        result = result + part * factor
    return result


def rename_index(index: Index, names: Mapping[str, str]) -> Index:
    """Replace the names of tensors that the index reads."""

    def rename(primary: Primary, parts: tuple[Index, ...]) -> Index | None:
        if not isinstance(primary, Indirect):
            return None
        return Index(
            0, ((Indirect(names.get(primary.tensor, primary.tensor), parts, primary.extent, primary.wraps), 1),)
        )

    return map_primaries(index, rename) if indirects(index) else index


# ---- contents of an expression


def walk(expr: Expr) -> Iterator[Expr]:
    """Yield the expression and everything below it, operands first."""
    for child in expr.children:
        yield from walk(child)
    yield expr


def distinct(expr: Expr) -> Iterator[Expr]:
    """Yield every object of an expression once, operands first.

    Transforms share most of their subexpressions.
    """
    seen: set[int] = set()
    stack = [(expr, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.children))


@lru_cache(maxsize=1 << 16)
def reads(expr: Expr) -> tuple[Read, ...]:
    """Return the distinct reads in order of first occurrence."""
    return tuple(dict.fromkeys(e for e in distinct(expr) if isinstance(e, Read)))


def indices(expr: Expr) -> Iterator[Index]:
    """Yield every index of an expression, in order of its nodes."""
    for node in distinct(expr):
        yield from node.own_indices


@lru_cache(maxsize=1 << 16)
def expr_variables(expr: Expr) -> frozenset[Var]:
    """Return every index variable that occurs in the expression."""
    return frozenset().union(*map(variables, indices(expr)))


@lru_cache(maxsize=1 << 16)
def expr_indirects(expr: Expr) -> tuple[Indirect, ...]:
    """Return the distinct indirect reads in an expression's indices.

    Inner ones come first.
    """
    return tuple(dict.fromkeys(found for index in indices(expr) for found in indirects(index)))


def tensors_read(expr: Expr) -> tuple[str, ...]:
    """Return the tensors that an expression reads, each once.

    Those read as values come first, then those in indices.
    """
    values, places = (r.tensor for r in reads(expr)), (i.tensor for i in expr_indirects(expr))
    return tuple(dict.fromkeys((*values, *places)))


# ---- expressions with something replaced


def rebuild(expr: Expr, leaf: Callable[[Expr], Expr]) -> Expr:
    """Rebuild bottom-up, applying `leaf` to every node without operands.

    Shared objects stay shared.
    """
    done: dict[int, Expr] = {}

    def visit(node: Expr) -> Expr:
        made = done.get(id(node))
        if made is None:
            children = node.children
            made = done[id(node)] = _with(node, tuple([visit(c) for c in children])) if children else leaf(node)
        return made

    return visit(expr)


def _with(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """Return a node with some operands, itself where these are its own."""
    return node if all(map(is_, node.children, children)) else node.with_children(children)


def map_indices(expr: Expr, move: MoveIndex, check: MoveGuards | None = None) -> Expr:
    """Replace every index of an expression.

    `check` maps the guards of a node, by default to the same guards of moved indices.
    """
    return rebuild(expr, lambda node: node.with_indices(move, check or (lambda guards: map_guards(guards, move))))


def map_guards(guards: tuple[Guard, ...], move: MoveIndex) -> tuple[Guard, ...]:
    """Replace the indices of guards."""
    return tuple(Guard(move(g.index), g.low, g.high) for g in guards)


def live_guards(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
    """Return the distinct guards that the ranges of variables do not prove."""
    return tuple(dict.fromkeys(g for g in guards if not g.always))


def substitute_guards(guards: tuple[Guard, ...], values: Mapping[Var, IndexLike]) -> tuple[Guard, ...]:
    """Replace variables in guards and drop those that became always true."""
    return live_guards(map_guards(guards, lambda index: substitute(index, values)))


def substitute_expr(expr: Expr, values: Mapping[Var, IndexLike]) -> Expr:
    """Replace index variables everywhere in an expression."""
    if not values or not any(v in values for v in expr_variables(expr)):
        return expr
    moved: dict[Index, Index] = {}  # the reads of a transform have many in common
    checked: dict[tuple[Guard, ...], tuple[Guard, ...]] = {}

    def move(index: Index) -> Index:
        found = moved.get(index)
        if found is None:
            found = moved[index] = substitute(index, values)
        return found

    def check(guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        if guards not in checked:
            checked[guards] = live_guards(map_guards(guards, move))
        return checked[guards]

    return map_indices(expr, move, check)


def rename_expr(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Replace the names of tensors that the expression reads.

    This holds for values and for indices.
    """

    def move(index: Index) -> Index:
        return rename_index(index, names)

    def leaf(node: Expr) -> Expr:
        moved = any(map(indirects, node.own_indices))
        made = node.with_indices(move, lambda guards: map_guards(guards, move)) if moved else node
        return _rename_read(made, names) if isinstance(made, Read) else made

    return rebuild(expr, leaf)


def _rename_read(read: Read, names: Mapping[str, str]) -> Read:
    name = names.get(read.tensor, read.tensor)
    return read if name == read.tensor else Read(name, read.indices, read.guards, read.fill)
