"""Rewrites the order of a tensor's dims in all accesses.

A tensor between kernels may lie in memory in any order of its dims. Its statements are written over its memory order,
so that the last index is the one whose neighbours are neighbours in memory, and every reader of accesses (views,
fusion, the schedule's space, both models) finds a dense tensor like any other:

    y[n, k, p, q] = relu(x[n, k, p, q])     ->     y[n, p, q, k] = relu(x[n, p, q, k])      x, y in order (0, 2, 3, 1)

`graph_layout` returns the layout of the tensor of the graph: its own shape, and strides that do not fall.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar

from attrs import evolve

from ...ir import Expr, Read, Statement, Storage, TensorType, linearise, rebuild
from ..statements import Programs, Unit

#: Dim of the tensor as the graph has it that is stored at each position, outermost first.
Order: TypeAlias = tuple[int, ...]
T = TypeVar("T")


def permute(values: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return the values of dims in a given order of them."""
    return tuple(values[d] for d in order)


def unpermute(values: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return the values of the graph's dims, given the stored ones."""
    return tuple(value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0]))


def moves_elements(shape: Sequence[int], order: Order) -> bool:
    """Return whether an order moves dims of several elements."""
    wide = [d for d in order if shape[d] > 1]
    return wide != sorted(wide)


def graph_layout(type_: TensorType, storage: Storage, order: Order) -> tuple[TensorType, Storage]:
    """Return the graph's type and storage of a tensor.

    They follow from those of the stored tensor. Dims of one element step over all later dims.
    """
    shape, strides = unpermute(type_.shape, order), list(unpermute(storage.strides, order))
    for d in reversed(range(len(shape))):
        if shape[d] == 1 and not moves_elements(shape, order):
            strides[d] = shape[d + 1] * strides[d + 1] if d + 1 < len(shape) else 1
    return TensorType(type_.dtype, shape), evolve(storage, strides=tuple(strides))


def reorder(programs: Programs, orders: Mapping[str, Order]) -> Programs:
    """Return programs in which some tensors are stored in another order.

    None of them is part of a loop.
    """
    types = {t: TensorType(programs.types[t].dtype, permute(programs.types[t].shape, o)) for t, o in orders.items()}
    programs = evolve(programs, types={**programs.types, **types}, orders={**programs.orders, **orders})
    return evolve(programs, units=tuple(reorder_unit(unit, programs, orders) for unit in programs.units))


def reorder_unit(unit: Unit, programs: Programs, orders: Mapping[str, Order]) -> Unit:
    """Return a unit that reads and writes some tensors in another order."""
    if not any(t in orders for t in unit.tensors):
        return unit
    return evolve(unit, statements=tuple(_statement(s, programs, orders) for s in unit.statements))


def _statement(statement: Statement, programs: Programs, orders: Mapping[str, Order]) -> Statement:
    body = rebuild(statement.body, lambda node: _read(node, orders))
    if statement.target not in orders:
        return evolve(statement, body=body)
    write = permute(statement.write, orders[statement.target])
    strides = programs.types[statement.target].strides
    address = linearise(write, strides)
    axes = sorted(statement.axes, key=lambda axis: -abs(address.coefficient(axis)))
    return evolve(statement, body=body, write=write, axes=tuple(axes))


def _read(node: Expr, orders: Mapping[str, Order]) -> Expr:
    if not isinstance(node, Read) or node.tensor not in orders:
        return node
    return evolve(node, indices=permute(node.indices, orders[node.tensor]))
