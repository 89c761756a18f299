"""Canonical form of a graph: graph passes repeated to a fixed point.

Each pass may open the way for others: a folded constant makes a reshape of weights disappear, which makes two filters
equal. They only remove or merge nodes, so the number of rounds is bounded by the number of nodes; in practice it is two
or three.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from ....ir import Graph, PassError
from ....ops.language import Instances
from ..base import Pass, run_passes
from .common_subexpressions import EliminateCommonSubexpressions
from .compose_movement import ComposeMovement
from .fold_affine import FoldAffine
from .fold_constants import FoldConstants
from .remove_dead_code import RemoveDeadCode
from .remove_identities import RemoveIdentities
from .sink_broadcasts import SinkBroadcasts
from .transpose_constants import TransposeConstants


def canonical_passes(instances: Instances) -> tuple[Pass, ...]:
    """Return the passes of one round."""
    return (
        RemoveDeadCode(),
        RemoveIdentities(instances),
        FoldConstants(instances),  # before merging: equal constants are made here
        TransposeConstants(instances),
        EliminateCommonSubexpressions(instances),
        ComposeMovement(instances),
        SinkBroadcasts(instances),  # afterwards, as chains of movements end in one
        FoldAffine(instances),  # last: movements between an operation and its scale are gone
    )


@frozen
class Canonicalise:
    """Run all canonicalising passes to a fixed point."""

    name: ClassVar[str] = "canonicalise"
    instances: Instances

    def run(self, graph: Graph) -> Graph:
        """Return the canonical form of a graph.

        Raises `PassError` where no fixed point is reached.
        """
        passes = canonical_passes(self.instances)
        for _ in range(len(graph.nodes) + 2):
            before, graph = graph, run_passes(graph, passes)
            if graph == before:
                return graph
        raise PassError(f"pass '{self.name}': no fixed point after {len(graph.nodes) + 2} rounds")
