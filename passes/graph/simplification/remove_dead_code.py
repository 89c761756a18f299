"""Removes nodes and constants that no output of the graph needs.

%a: f32[4] = relu(%x)                 ->     %y: f32[4] = exp(%x)
%y: f32[4] = exp(%x)                         output %y
output %y
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from ....ir import Graph
from ..rewrite import prune


@frozen
class RemoveDeadCode:
    """Keep only dependencies of the outputs; inputs stay as the signature."""

    name: ClassVar[str] = "remove-dead-code"

    def run(self, graph: Graph) -> Graph:
        """Return the graph without dead nodes and constants."""
        return prune(graph)
