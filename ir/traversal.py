"""Traversal and rewriting of scalar expressions.

The class of each kind of node defines its operands and its reconstruction, so that a new kind is walked everywhere.
*Every* index of an expression means those of guards too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from math import gcd
from operator import is_

from attrs import frozen

from .affine import (
    Guard,
    Index,
    IndexLike,
    Indirect,
    MoveGuards,
    MoveIndex,
    Var,
    indirects,
    live_guards,
    map_guards,
    rename_index,
    steps_of,
    substitute,
    variables,
)
from .expr import Call, Const, Expr, Read
from .types import DType

#: Fewest terms of a sum that share a scale: those of the shallowest K block.
MIN_SCALED_TERMS = 32
#: Bits of a byte.
BYTE_BITS = 8

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


def loaded_values(expr: Expr) -> Iterator[Expr]:
    """Yield the values that a thread holds after its loads.

    They are reads, and sums of two products of reads: products are formed as their operands are loaded.
    """
    seen: set[Expr] = set()
    stack = [expr]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, Read) or _is_weighted(node):
            yield node
        else:
            stack.extend(node.children)


def _is_weighted(node: Expr) -> bool:
    """Return whether a node is a product of reads, or a sum or difference of two such products."""
    if not isinstance(node, Call):
        return False
    if node.fn in ("add", "sub"):
        return all(_is_product_of_reads(part) for part in node.children)
    return _is_product_of_reads(node)


def _is_product_of_reads(node: Expr) -> bool:
    """Return whether a node is a product of two reads or more and any constants."""
    parts, found = [node], 0
    while parts:
        part = parts.pop()
        if isinstance(part, Call) and part.fn in ("mul", "neg"):
            parts.extend(part.children)
        elif not isinstance(part, (Read, Const)):
            return False
        found += isinstance(part, Read)
    return found >= 2


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


def factors(expr: Expr) -> tuple[Expr, ...]:
    """Return the factors of a product, itself where it is none."""
    if isinstance(expr, Call) and expr.fn == "mul":
        return factors(expr.args[0]) + factors(expr.args[1])
    return (expr,)


@lru_cache(maxsize=1 << 14)
def block_scales(term: Expr, reduced: tuple[Var, ...]) -> tuple[tuple[Expr, ...], int]:
    """Return factors that are constant over blocks of terms, and their extent.

    They scale the partial sum of a block, of products of the other two factors. A block has all terms of the last axis,
    or some in its order, and a power of two from `MIN_SCALED_TERMS` on. Without such factors the extent is 0.
    """
    parts = factors(term)
    if len(parts) < 3 or not reduced:
        return (), 0
    *outer, last = reduced
    moved = [any(v in outer for v in expr_variables(part)) for part in parts]
    steps = [
        gcd(*(steps_of(index, last) for index in indices(part))) or last.extent * m
        for part, m in zip(parts, moved, strict=True)
    ]
    found = tuple(part for part, step in zip(parts, steps, strict=True) if step != 1)
    # Several axes are one run of terms, in which blocks of the last one are aligned where they divide it.
    common = gcd(last.extent if outer else 0, *(step for step in steps if step != 1))
    block = common & -common
    scaled = block >= MIN_SCALED_TERMS and steps.count(1) == 2 == len(parts) - len(found)
    return (found, block) if scaled else ((), 0)


@lru_cache(maxsize=1 << 16)
def numbers_per_byte(expr: Expr) -> int:
    """Return the most numbers of a byte that an expression masks."""
    masks = (node.args[1] for node in distinct(expr) if isinstance(node, Call) and node.fn == "bitand")
    bits = (int(mask.value).bit_length() for mask in masks if isinstance(mask, Const) and mask.dtype is DType.U8)
    return max((BYTE_BITS // n for n in bits if n), default=1)


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
            made = done[id(node)] = (
                _replace_operands(node, tuple([visit(c) for c in children])) if children else leaf(node)
            )
        return made

    return visit(expr)


def share(expr: Expr, known: dict[Expr, Expr]) -> Expr:
    """Return an expression whose equal parts are one object.

    `known` has the objects of further expressions. Comparing parts takes no time then.
    """
    done: dict[int, Expr] = {}
    for node in distinct(expr):
        made = _replace_operands(node, tuple(done[id(child)] for child in node.children)) if node.children else node
        done[id(node)] = known.setdefault(made, made)
    return done[id(expr)]


def _replace_operands(node: Expr, children: tuple[Expr, ...]) -> Expr:
    """Return a node with some operands, itself where these are its own."""
    return node if all(map(is_, node.children, children)) else node.with_children(children)


def map_indices(expr: Expr, move: MoveIndex, check: MoveGuards | None = None) -> Expr:
    """Replace every index of an expression.

    `check` maps the guards of a node, by default to the same guards of moved indices.
    """
    return rebuild(expr, lambda node: node.with_indices(move, check or (lambda guards: map_guards(guards, move))))


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


# ---- elements


@frozen
class AddressedElement:
    """Element of a tensor that is read where all guards hold."""

    tensor: str
    indices: tuple[Index, ...]
    guards: tuple[Guard, ...] = ()


def addressed_elements(expr: Expr) -> Iterator[AddressedElement]:
    """Yield every element that an expression reads, in its indices too.

    Guards are tested from left to right: an element within a guard is read where the guards before it hold.
    """
    for node in distinct(expr):
        guards = getattr(node, "guards", ())
        for number, guard in enumerate(guards):
            yield from _indirect_elements(guard.index, guards[:number])
        if isinstance(node, Read):
            yield AddressedElement(node.tensor, node.indices, guards)
        for index in node.own_indices[: len(node.own_indices) - len(guards)]:
            yield from _indirect_elements(index, guards)


def _indirect_elements(index: Index, guards: tuple[Guard, ...]) -> Iterator[AddressedElement]:
    return (AddressedElement(i.tensor, i.indices, guards) for i in indirects(index))
