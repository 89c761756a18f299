"""A graph under construction: readable values, and fitting operands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, field
from cuts.ir.graph import Array, Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops.language import Registry
from hypothesis import strategies as st

from ..frontends.strategies import GraphBuilder

#: Elements of the largest tensor: the float64 reference of a graph takes milliseconds.
MAX_ELEMENTS = 4000
#: Magnitude limit of kept values, so that no chain of nodes overflows or loses digits that a tolerance can show.
GREATEST = 64.0


class Builder(GraphBuilder):
    """Builder with nodes of several results and arrays of its own."""

    def array(self, values: Array, dtype: DType) -> str:
        """Add a constant of given values."""
        name = self.rename(f"c{len(self.constants)}")
        self.constants[name] = np.ascontiguousarray(values, dtype.numpy)
        self.types[name] = TensorType(dtype, self.constants[name].shape)
        return name

    def results(self, op: str, *inputs: str | None, declaration: str = "", **attributes: Any) -> tuple[str, ...]:
        """Add a node and return all results; it may bring its declaration."""
        number = len(self.nodes)
        bare = Node(self.rename(f"n{number}"), op, inputs, (), attributes, declaration=declaration)
        types = Registry.builtin().instances.infer(bare, [None if v is None else self.types[v] for v in inputs])
        names = tuple(self.rename(f"v{number}" if len(types) == 1 else f"v{number}_{k}") for k in range(len(types)))
        self.nodes.append(evolve(bare, outputs=names))
        self.types |= dict(zip(names, types, strict=True))
        return names


@define
class Growth:
    """A graph under construction.

    `values` are the real-valued results so far, in order; `bounds` says how large the elements of each can be, about,
    and `exact` which were computed without rounding, so that comparing them is no matter of luck.
    """

    draw: st.DrawFn
    build: Builder
    values: list[str] = field(factory=list)
    others: list[str] = field(factory=list)
    bounds: dict[str, float] = field(factory=dict)
    exact: set[str] = field(factory=set)
    dtype: DType = DType.F32

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value."""
        return self.build.types[value].shape

    def pick(self, options: Sequence[Any]) -> Any:
        """Draw one of some options; Hypothesis shrinks towards the first."""
        return self.draw(st.sampled_from(options))

    def number(self, low: int, high: int) -> int:
        """Draw an integer, both ends included."""
        return self.draw(st.integers(low, high))

    def flag(self) -> bool:
        """Draw yes or no."""
        return self.draw(st.booleans())

    def source(self, *shape: int, exact: bool = True) -> str:
        """Add an input of the graph."""
        name = self.build.input(shape, self.dtype)
        self.bounds[name] = 4.0
        self.exact.update({name} if exact else ())
        return name

    def operand(self, *shape: int, scale: float = 1.0) -> str:
        """Add an operand: a constant weight, or an input.

        Inputs have unit variance for any `scale`.
        """
        if scale == 1.0 and self.flag():
            return self.source(*shape)
        name = self.build.array(self.build.rng.standard_normal(shape) * scale, self.dtype)
        self.bounds[name] = 4.0 * scale
        self.exact.add(name)
        return name

    def positive(self, *shape: int) -> str:
        """Add a constant of numbers between 1/2 and 3/2."""
        name = self.build.array(self.build.rng.uniform(0.5, 1.5, shape), self.dtype)
        self.bounds[name] = 1.5
        return name

    def constant(self, *shape: int) -> str:
        """Add a constant of normally distributed numbers."""
        name = self.build.array(self.build.rng.standard_normal(shape), self.dtype)
        self.bounds[name] = 4.0
        return name

    def weight(self, terms: int, *shape: int) -> str:
        """Add a weight of the magnitude that sums over `terms` preserve."""
        return (
            self.operand(*shape, scale=float(terms) ** -0.5) if self.pick((True, True, False)) else self.operand(*shape)
        )

    def places(self, extent: int, *shape: int) -> str:
        """Add integers that index an axis; some count from its end."""
        low = -extent if self.flag() else 0
        return self.build.array(self.build.rng.integers(low, extent, shape), self.pick((DType.I64, DType.I32)))

    def grow(
        self, op: str, *inputs: str | None, bound: float | None = None, exact: bool = False, **attributes: Any
    ) -> str:
        """Add a node of one real result, which later nodes may read;
        `bound` is by default that of the first operand.
        """
        result = self.build.node(op, *inputs, **attributes)
        self.keep(result, inputs, bound, exact)
        return result

    def keep(self, result: str, inputs: Sequence[str | None], bound: float | None = None, exact: bool = False) -> None:
        """Let later nodes read a result, unless it is too large."""
        known = [v for v in inputs if v is not None and v in self.bounds]
        self.bounds[result] = max((self.bounds[v] for v in known), default=1.0) if bound is None else bound
        if exact and all(v in self.exact for v in known):
            self.exact.add(result)
        if self.build.types[result].size <= MAX_ELEMENTS:
            self.values.append(result)

    def graph(self) -> Graph:
        """Return the graph, with all unread values and some others as outputs."""
        read = {v for node in self.build.nodes for v in node.operands}
        computed = [v for node in self.build.nodes for v in node.outputs]
        ends = [v for v in computed if v not in read]
        more = self.draw(st.lists(st.sampled_from(computed), max_size=2, unique=True))
        unread = {v for v in self.build.inputs[1:] if v not in read}
        self.build.inputs = [v for v in self.build.inputs if v not in unread]
        for value in unread:
            del self.build.types[value]
        return self.build.graph(*ends, *(v for v in more if v not in ends), name="fuzz")
