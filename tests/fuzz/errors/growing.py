"""Random graphs of operations by role, from declarations alone.

Operations are fitted to existing values.

Graph number `n` of a seed is the same in every process. Sizes are 0, 1, small primes and those of tiles; an operation
with algorithms stands between random neighbours, or is replaced by one of its algorithms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from attrs import define, field, frozen
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import MAX_RANK
from cuts.ops import OpDecl, Registry
from cuts.ops.language import syntax as s
from cuts.ops.language.checks.binding import CLASSES
from cuts.passes.partitioning.algorithm_graphs import replace_node

from ..sweep.samples import Shapes, Slot, draw_attributes, draw_dtypes, draw_shape
from .roles import Role, roles

T = TypeVar("T")
#: Roles by weight.
WEIGHTS: dict[Role, int] = {
    "algorithms": 5,
    "contraction": 4,
    "movement": 6,
    "pointwise": 6,
    "reduction": 3,
    "other": 2,
}
#: Extents of a graph's first values, and how many in a hundred are empty.
EXTENTS, EMPTY = (1, 2, 3, 4, 5, 7, 8, 13, 14, 16, 17), 4
#: Windows of operations that have some.
WINDOWS = (1, 2, 3, 3, 3, 5, 5, 7)
#: Ranks of first values: images most often.
RANKS = (4, 4, 4, 4, 3, 2, 2, 1, 5, 0)
#: Tries to fit a node, most nodes, elements of a node's tensors, terms of its sums, and its statements.
TRIES, MAX_NODES, MAX_ELEMENTS, MAX_TERMS, MAX_STATEMENTS = 40, 7, 40_000, 4_000_000, 80


@frozen
class Windows(Shapes):
    """Extents with frequent equalities, and lists shaped as windows of earlier lists."""

    def single(self, name: str) -> int:
        """Return the extent of a name."""
        used = list(self.extents.values())
        if name not in self.extents and used and self.rng.integers(5) < 2:
            self.extents[name] = used[int(self.rng.integers(len(used)))]
        return super().single(name)

    def spread_extents(self, name: str) -> tuple[int, ...]:
        """Return the extents of a name that is spread."""
        earlier = [found for found in self.lists.values() if found]
        if name not in self.lists and earlier and self.rng.integers(2):
            rank = len(earlier[0])
            drawn = [int(self.rng.choice(WINDOWS)) for _ in range(rank)]
            self.lists[name] = tuple(drawn[:1] * rank if self.rng.integers(3) else drawn)
        return super().spread_extents(name)


@define
class GraphGrowth:
    """Growth of a graph; each node is fitted to an existing value."""

    rng: np.random.Generator
    registry: Registry
    types: dict[str, TensorType] = field(factory=dict)
    inputs: list[str] = field(factory=list)
    constants: dict[str, np.ndarray[Any, Any]] = field(factory=dict)
    nodes: list[Node] = field(factory=list)
    values: list[str] = field(factory=list)

    def start(self) -> None:
        """Add a first value."""
        rank = int(self.rng.choice(RANKS))
        shape = tuple(
            0 if self.rng.integers(100) < EMPTY else int(self.rng.choice(EXTENTS[: 8 if rank > 3 else None]))
            for _ in range(rank)
        )
        dtype = DType.F32 if self.rng.integers(8) else self._one(tuple(DType))
        self.values.append(self._operand(TensorType(dtype, shape), False))

    def grow(self) -> bool:
        """Add a node of a drawn role; False where none fits."""
        names = list(WEIGHTS)
        weights = np.array([WEIGHTS[name] for name in names], float)
        role = names[int(self.rng.choice(len(names), p=weights / weights.sum()))]
        tries = TRIES * (8 if role == "algorithms" else 1)
        return any(self._fit(self._one(roles()[role]), role) for _ in range(tries))

    def graph(self) -> Graph:
        """Return the graph; unread values and some others are outputs."""
        read = {v for node in self.nodes for v in node.operands}
        made = [v for node in self.nodes for v in node.outputs]
        outputs = [v for v in made if v not in read or not self.rng.integers(6)]
        inputs = tuple(v for v in self.inputs if v in read)
        constants = {v: array for v, array in self.constants.items() if v in read}
        types = {v: self.types[v] for v in (*inputs, *constants, *made)}
        return Graph("fuzz", inputs, tuple(outputs), types, tuple(self.nodes), constants)

    def _one(self, options: Sequence[T]) -> T:
        return options[int(self.rng.integers(len(options)))]

    def _operand(self, type_: TensorType, constant: bool) -> str:
        """Add an input, or a constant."""
        name = f"{'c' if constant else 'x'}{len(self.types)}"
        self.types[name] = type_
        if constant:
            drawn = (
                self.rng.standard_normal(type_.shape) if type_.dtype.is_float else self.rng.integers(0, 2, type_.shape)
            )
            self.constants[name] = np.asarray(drawn).astype(type_.dtype.numpy)
        else:
            self.inputs.append(name)
        return name

    def _fit(self, op: str, role: Role) -> bool:
        """Add a node of an operation that reads an existing value; False where the drawn one does not fit."""
        decl = self.registry[op]
        value = self.values[-1] if self.rng.integers(3) else self._one(self.values)
        types = self._types(decl, self.types[value])
        if types is None:
            return False
        try:
            stated = 2 if role == "algorithms" else 3
            attributes = draw_attributes(decl, types, self.rng, stated)
            instance = decl.instantiate(types, attributes)
        except CutsError:
            return False
        program = instance.program
        terms = [math.prod(a.extent for a in (*st.axes, *st.reduce)) for st in program.statements]
        fits = sum(t.size for t in program.tensors.values()) <= MAX_ELEMENTS and sum(terms) <= MAX_TERMS
        ranks = [len(t.shape) for t in (*program.tensors.values(), *instance.output_types)]
        if not fits or len(program.statements) > MAX_STATEMENTS or max(ranks) > MAX_RANK:
            return False
        if role == "algorithms" and not instance.algorithms and self.rng.integers(4):
            return False
        names = tuple(f"v{len(self.nodes)}_{n}" for n in range(len(instance.output_types)))
        operands = tuple(None if t is None else self._source(t, value) for t in types)
        self.nodes.append(Node(f"n{len(self.nodes)}", op, operands, names, attributes))
        self.types.update(zip(names, instance.output_types, strict=True))
        self.values.extend(names)
        return True

    def _source(self, type_: TensorType, value: str) -> str:
        """Return a value of a type: the one that the node is fitted to, another one of that type, or a new operand."""
        if self.types[value] == type_ and self.rng.integers(4):
            return value
        equal_types = [v for v in self.values if self.types[v] == type_]
        if equal_types and self.rng.integers(3):
            return self._one(equal_types)
        return self._operand(type_, bool(self.rng.integers(3) == 0))

    def _types(self, decl: OpDecl, first: TensorType) -> list[TensorType | None] | None:
        """Draw the types of a node's operands, one of them fixed; None where the fixed one is illegal."""
        if not decl.operands:
            return None
        place = 0 if self.rng.integers(3) else int(self.rng.integers(len(decl.operands)))
        shapes = Windows(self.rng, bool(self.rng.integers(2)))
        if not self._bind(decl, decl.operands[place], first, shapes):
            return None
        dtypes = draw_dtypes(decl, Slot(decl.name, first.dtype), self.rng)
        if decl.operands[place].dtype in dtypes:
            dtypes[decl.operands[place].dtype] = first.dtype
        types: list[TensorType | None] = []
        for number, operand in enumerate(decl.operands):
            for turn in range(int(self.rng.integers(1, 4)) if operand.variadic else 1):
                if number == place and not turn:
                    types.append(first)
                elif operand.optional and self.rng.integers(2):
                    types.append(None)
                elif (shape := draw_shape(operand, shapes)) is None:
                    return None
                else:
                    types.append(TensorType(dtypes.get(operand.dtype) or DType(operand.dtype), shape))
        while types and types[-1] is None:
            types.pop()
        return types

    def _bind(self, decl: OpDecl, operand: s.Operand, type_: TensorType, shapes: Shapes) -> bool:
        """Name the extents of a type by the dims of an operand; whether that has such a type."""
        classes = decl.element_types.get(operand.dtype)
        allowed = [d for c in classes for d in CLASSES[c]] if classes else [DType(operand.dtype)]
        spread = [n for n, dim in enumerate(operand.dims) if isinstance(dim, s.Spread)]
        rest = len(type_.shape) - (len(operand.dims) - len(spread))
        if type_.dtype not in allowed or len(spread) > 1 or rest < 0 or (rest and not spread):
            return False
        at = 0
        for dim in operand.dims:
            node = dim.value if isinstance(dim, s.Spread) else dim
            name = node.id if isinstance(node, s.Name) else f"computed {node!r}"
            if isinstance(dim, s.Spread):
                shapes.lists[name] = type_.shape[at : at + rest]
                at += rest
            elif shapes.extents.setdefault(name, type_.shape[at]) != type_.shape[at]:
                return False
            else:
                at += 1
        return True


def grow_graph(seed: int, number: int) -> Graph:
    """Return graph `number` of a seed."""
    rng = np.random.default_rng([seed, number, 44])
    while True:
        growth = GraphGrowth(rng, Registry.builtin())
        growth.start()
        for _ in range(int(rng.integers(2, MAX_NODES + 1))):
            growth.grow()
        graph = growth.graph()
        if graph.outputs:
            return force_algorithms(graph, rng)


def force_algorithms(graph: Graph, rng: np.random.Generator) -> Graph:
    """Replace some nodes by one of their algorithms; return the graph.

    Nodes whose steps do not fit stay.
    """
    instances = Registry.builtin().instances
    for node in graph.nodes:
        names = list(instances.of_node(node, graph).algorithms)
        if names and rng.integers(2):
            try:
                graph = replace_node(graph, node, names[int(rng.integers(len(names)))], instances)
            except CutsError:
                continue
    return graph
