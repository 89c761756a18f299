"""Reference of a plan's model: float64 values, tolerances, and the first overflow.

It reads declarations; a plan runs without them, so `plan.py` imports this module when a value is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from ..ir import PRECISIONS, Array, DType, quote
from ..numerics import Comparison, compare, overflow_message, run_reference, value_tolerances
from ..ops import Registry, evaluate_graph
from ..passes import graph_passes
from ..passes.graph import run_passes
from ..runtime import PlannedModel
from .loading import Spec, spec_of_texts


@frozen
class PlanReference:
    """Reference of a model.

    `inputs` of its methods have all inputs of the graph, those of state too.
    """

    model: PlannedModel
    spec: Spec

    @classmethod
    def of(cls, model: PlannedModel) -> PlanReference:
        """Return the reference of a model with its own declarations."""
        return cls(model, spec_of_texts(model.specs))

    @property
    def registry(self) -> Registry:
        """The vocabulary, with the declarations of the model."""
        return self.spec.registry

    def results(self, inputs: Mapping[str, Array]) -> dict[str, Any]:
        """Return all outputs of the graph in float64."""
        return run_reference(self.model.graph, self.registry, inputs)

    def values(self, inputs: Mapping[str, Array], kind: npt.DTypeLike) -> dict[str, Any]:
        """Return every value of the graph; floats have the precision `kind`."""
        every = tuple(value for node in self.model.graph.nodes for value in node.outputs)
        return run_reference(evolve(self.model.graph, outputs=every), self.registry, inputs, kind)

    def own_operations(self) -> tuple[str, ...]:
        """Return the user-declared operations of the graph, in order."""
        return tuple(dict.fromkeys(node.op for node in self.model.graph.nodes if node.op in self.spec.own))

    def tolerances(self, algorithms: Set[str]) -> dict[str, float]:
        """Return the relative rounding error of every value, with these algorithms."""
        return value_tolerances(self.model.graph, self.registry, algorithms, self.model.precision)

    @staticmethod
    def compare(
        found: Mapping[str, Any], expected: Mapping[str, Any], allowed: Mapping[str, float]
    ) -> tuple[Comparison, ...]:
        """Compare values by name, each with its tolerance."""
        return tuple(compare(name, value, expected[name], allowed[name]) for name, value in found.items())

    def rounding_losses(self, inputs: Mapping[str, Array]) -> dict[str, float]:
        """Return the relative error of every value in single precision."""
        single, double = (self.values(inputs, kind) for kind in (np.float32, np.float64))
        return {name: compare(name, single[name], value, 0.0).error for name, value in double.items()}

    def saturated_values(self, inputs: Mapping[str, Array]) -> Iterator[str]:
        """Describe 8-bit floats that are the largest of their type."""
        kinds = {v: self.model.graph.types[v].dtype for node in self.model.graph.nodes for v in node.outputs}
        narrow = {v: kind for v, kind in kinds.items() if kind.is_float and kind.size == 1}
        graph = evolve(self.model.graph, outputs=tuple(narrow))
        for name, values in evaluate_graph(graph, self.registry, inputs).items() if narrow else ():
            largest = narrow[name].element.largest
            places = np.argwhere(np.abs(values.astype(np.float64)) >= largest)
            if len(places):
                first = [int(i) for i in places[0]]
                yield (
                    f"{quote(name)}: {len(places)} of {values.size} values are the largest of {narrow[name]} "
                    f"({largest:g}), the first at {first}"
                )

    def first_overflow(self, inputs: Mapping[str, Array]) -> str:
        """Describe the first value that overflows its type.

        A fused kernel shows only its results, which are NaN or infinite by then. So the graph that the policy makes of
        the model is evaluated in double precision, where nothing overflows, and its values are checked in order of
        computation. The value is finite in double precision; the text is empty where there is none.
        """
        stored = PRECISIONS[self.model.precision].stored
        if stored is DType.F32:
            return ""
        graph = run_passes(self.model.graph, graph_passes(self.registry, self.model.precision))
        convert, _ = self.registry.instances.conversion
        # A conversion rounds in double precision too, so its operand has the expected value.
        meant = {node.outputs[0]: node.operands[0] for node in graph.nodes if node.op == convert}
        narrow = tuple(v for node in graph.nodes for v in node.outputs if graph.types[v].dtype is stored)
        wanted = tuple(dict.fromkeys(meant.get(v, v) for v in narrow))
        evaluated = evaluate_graph(evolve(graph, outputs=wanted), self.registry, inputs)
        values = {**inputs, **graph.constants, **evaluated}
        for name in narrow:
            right = values[meant.get(name, name)]
            with np.errstate(over="ignore"):
                infinite = np.isinf(right.astype(stored.numpy).astype(np.float64))
            if text := overflow_message(name, infinite, right, stored):
                return text
        return ""
