"""Passes from a graph to kernels, and the interfaces of the pipeline."""

from .costs import (
    CandidateSubgraph,
    CostRequest,
    CostResult,
    KernelsQuery,
    LocalPlanning,
    Member,
    MemberRow,
    Planning,
    Questions,
    Roofline,
    Selector,
    SubgraphKernels,
    Workload,
    evaluate_costs,
    partition_subgraph,
    schedule_row,
)
from .decisions import Decisions, ForeignDecisionsError, GroupDecision
from .fingerprints import node_fingerprints
from .horizontal_fusion import join_forms
from .pipeline import compile_graph, graph_passes
from .rewrites import STATEMENT_STAGES

__all__ = [
    "STATEMENT_STAGES",
    "CandidateSubgraph",
    "CostRequest",
    "CostResult",
    "Decisions",
    "ForeignDecisionsError",
    "GroupDecision",
    "KernelsQuery",
    "LocalPlanning",
    "Member",
    "MemberRow",
    "Planning",
    "Questions",
    "Roofline",
    "Selector",
    "SubgraphKernels",
    "Workload",
    "compile_graph",
    "evaluate_costs",
    "graph_passes",
    "join_forms",
    "node_fingerprints",
    "partition_subgraph",
    "schedule_row",
]
