"""Graph in the files of a plan, parsed at its first use."""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

from ...ir import CutsError, Graph, PlanError
from ..plan import check_model
from .plan_document import PlanDocument
from .weights import StoredWeights

#: Lines of a graph's text about its interface.
_INTERFACE = re.compile(r"^\s*(state|result|update)\b", re.MULTILINE)


@frozen(eq=False)
class GraphText:
    """Text of a graph, and the weights with its arrays."""

    root: Path
    document: PlanDocument
    text: str
    weights: StoredWeights

    @property
    def has_interface(self) -> bool:
        """Return whether the graph has state, fixed results or updates."""
        return _INTERFACE.search(self.text) is not None

    def read(self) -> Graph:
        """Parse the graph.

        Raises `PlanError` where it contradicts the plan.
        """
        from ...ir import parse_graph

        document, model = self.document, self.document.model
        try:
            keys, orders = (model.constants, model.orders) if model else ({}, {})
            arrays = {name: self.weights[key] for name, key in keys.items()}
            arrays |= {name: arrays[name].transpose(order) for name, order in orders.items()}
            graph = parse_graph(self.text, arrays, "model.txt")
            check_model(document.name, graph, document.inputs, document.outputs, document.types)
        except PlanError as error:
            raise PlanError(f"{self.root}: {error.message}", hint="write the plan again") from error
        except (KeyError, ValueError, CutsError) as error:
            text = f"{self.root}: the plan contradicts itself: {error}"
            raise PlanError(text, hint="write the plan again") from error
        return graph
