"""Passes from a graph to kernels, and the interfaces of the pipeline."""

from .assemble import assemble_kernels
from .context import CompileContext, Emit
from .costs import (
    CandidateSubgraph,
    CostRequest,
    CostResult,
    KernelsQuery,
    Keys,
    LocalExecutor,
    MeasuredTimes,
    Member,
    MemberRow,
    ModelQuery,
    PointsRequest,
    Questions,
    Roofline,
    ScheduleRequest,
    SubgraphKernels,
    Workload,
    evaluate_costs,
    partition_subgraph,
    schedule_row,
    search_points,
)
from .decisions import Decisions, ForeignDecisionsError
from .fingerprints import node_fingerprints
from .partitioning import join_forms
from .pipeline import compile_graph, graph_passes, run_stages, stage_results
from .record_decisions import record_decisions, unfused_seconds
from .rewrites import STATEMENT_STAGES
