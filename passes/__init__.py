"""Passes from a graph to kernels, and the interfaces of the pipeline."""

from .async_cost import CostRequest, CostResult, evaluate_costs
from .candidate_subgraphs import CandidateSubgraph, SubgraphKernels, partition_subgraph
from .decisions import Decisions, ForeignDecisionsError, GroupDecision
from .evaluators import Roofline
from .fingerprints import node_fingerprints
from .horizontal_fusion import join_forms
from .launch_schedules import MemberRow, schedule_row
from .pipeline import compile_graph, graph_passes
from .rewrites import STATEMENT_STAGES
from .tuner_interface import KernelsQuery, LocalPlanning, Member, Planning, Questions, Selector, Workload

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
