"""Costs of groups and launches, and the interface of their measurement."""

from .async_cost import AsyncCost, CostRequest, CostResult, CostService, evaluate_costs
from .candidate_subgraphs import (
    CandidateSubgraph,
    Planner,
    SubgraphKernels,
    needed_operations,
    partition_subgraph,
    partition_subgraphs,
)
from .evaluators import AnalyticCost, BudgetedCost, Roofline
from .launch_schedules import MemberRow, RowScheduler, schedule_row
from .shared_launches import shared_launch_bound, shared_launch_seconds
from .tuner_interface import KernelsQuery, LocalPlanning, Member, Planning, Questions, Selector, Workload

__all__ = [
    "AnalyticCost",
    "AsyncCost",
    "BudgetedCost",
    "CandidateSubgraph",
    "CostRequest",
    "CostResult",
    "CostService",
    "KernelsQuery",
    "LocalPlanning",
    "Member",
    "MemberRow",
    "Planner",
    "Planning",
    "Questions",
    "Roofline",
    "RowScheduler",
    "Selector",
    "SubgraphKernels",
    "Workload",
    "evaluate_costs",
    "needed_operations",
    "partition_subgraph",
    "partition_subgraphs",
    "schedule_row",
    "shared_launch_bound",
    "shared_launch_seconds",
]
