"""Captured graphs with computed sizes, at samples of these.

PyTorch traces such a number as a symbol that no input has. At a sample, symbols in shapes, strides and arguments are
numbers, and calls that read or check sizes are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from ....ir import Dim, GraphError
from ....ops.symbolic import ComputedSizes
from ..calls import COMPUTES_SIZE, map_nodes

#: Imports a graph with computed sizes.
Import = Callable[[torch.fx.Graph, ComputedSizes], object]
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def computed_symbols(graph: torch.fx.Graph) -> dict[Any, torch.fx.Node]:
    """Return the symbols that calls compute, in order, with their calls."""
    found: dict[Any, torch.fx.Node] = {}
    given = {s for node in graph.find_nodes(op="placeholder") for s in _symbols(node)}
    for node in graph.nodes:
        for symbol in _symbols(node) if node.op == "call_function" else ():
            if symbol not in given:
                found.setdefault(symbol, node)
    return found


def computed_dims(graph: torch.fx.Graph, import_graph: Import, varies: bool = False) -> tuple[Dim, ...]:
    """Return the dims of a graph's computed symbols, with their bounds.

    The graph is imported up to each call that has one: its operand bounds the number of rows. Raises `GraphError` where
    a symbol is no number of rows.
    """
    dims: tuple[Dim, ...] = ()
    nodes = list(computed_symbols(graph).values())
    for node in nodes:
        part = torch.fx.Graph(owning_module=graph.owning_module)
        known: dict[torch.fx.Node, torch.fx.Node] = {}
        for each in graph.nodes:
            if each.op != "output":
                known[each] = part.node_copy(each, known.__getitem__)
            if each is node:
                break
        part.output(())
        computed = ComputedSizes(bounds={dim.name: dim.high for dim in dims}, varies=varies)
        import_graph(part, computed)
        dims = computed.dims
    if len(dims) != len(nodes):
        raise GraphError("a number that depends on values is none of rows")
    return dims


def graph_at_sizes(graph: torch.fx.Graph, computed: ComputedSizes) -> torch.fx.Graph:
    """Return a graph with known sizes in place of computed symbols."""
    symbols = computed_symbols(graph)
    known_sizes = {symbol: computed.size(f"rows.{number}") for number, symbol in enumerate(symbols)}
    sizes = {symbol: size for symbol, size in known_sizes.items() if size is not None}
    made, known = torch.fx.Graph(owning_module=graph.owning_module), dict[torch.fx.Node, Any]()
    with FakeTensorMode():
        for node in graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, _SYMBOLIC):
                known[node] = _number(value, sizes)
            elif node.op == "output":
                made.output(map_nodes(node.args[0], known)).meta = dict(node.meta)
            elif not _checks(node):
                known[node] = made.node_copy(node, known.__getitem__)
                example = tree_map(lambda leaf: _example(leaf, sizes), value)
                known[node].meta = {**node.meta, "val": example, COMPUTES_SIZE: node in symbols.values()}
    return made


def _checks(node: torch.fx.Node) -> bool:
    return node.op == "call_function" and not node.users and node.meta.get("val") is None


def _symbols(node: torch.fx.Node) -> Iterator[Any]:
    """Yield the symbols in the shapes of a node's results."""
    for leaf in tree_leaves(node.meta.get("val")):
        for extent in leaf.shape if isinstance(leaf, torch.Tensor) else ():
            if isinstance(extent, torch.SymInt):
                yield from sorted(extent.node.expr.free_symbols, key=str)


def _number(value: Any, sizes: Mapping[Any, int]) -> Any:
    """Return a symbolic number at sizes, itself where it has other symbols."""
    found = value.node.expr.subs(sizes)
    if found.free_symbols:
        return value
    kind = int if isinstance(value, torch.SymInt) else float if isinstance(value, torch.SymFloat) else bool
    return kind(found)


def _example(leaf: Any, sizes: Mapping[Any, int]) -> Any:
    if not isinstance(leaf, torch.Tensor) or not any(isinstance(n, torch.SymInt) for n in leaf.shape):
        return leaf
    shape, strides = ([_number(n, sizes) if isinstance(n, torch.SymInt) else n for n in ns]
                      for ns in (leaf.shape, leaf.stride()))  # fmt: skip
    if not all(isinstance(n, int) for n in (*shape, *strides)):
        return leaf
    return torch.empty_strided(shape, strides, dtype=leaf.dtype, device=leaf.device)
