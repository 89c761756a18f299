"""Costs of groups and launches, and the interfaces that give them: cost model and executor."""

from .async_cost import AsyncCost, CostRequest, CostResult, evaluate_costs
from .candidate_subgraphs import CandidateSubgraph, SubgraphKernels, needed_operations, partition_subgraph
from .cost_model import AnalyticModel, CostModel, KernelsQuery, MeasuredTimes, Questions
from .evaluators import AnalyticCost, BudgetedCost, Roofline
from .executor import Executor, Keys, LocalExecutor, Member, Request, ScheduleRequest, Workload
from .launch_schedules import MemberRow, schedule_row
from .shared_launches import shared_launch_bound, shared_launch_seconds

__all__ = [
    "AnalyticCost",
    "AnalyticModel",
    "AsyncCost",
    "BudgetedCost",
    "CandidateSubgraph",
    "CostModel",
    "CostRequest",
    "CostResult",
    "Executor",
    "KernelsQuery",
    "Keys",
    "LocalExecutor",
    "MeasuredTimes",
    "Member",
    "MemberRow",
    "Questions",
    "Request",
    "Roofline",
    "ScheduleRequest",
    "SubgraphKernels",
    "Workload",
    "evaluate_costs",
    "needed_operations",
    "partition_subgraph",
    "schedule_row",
    "shared_launch_bound",
    "shared_launch_seconds",
]
