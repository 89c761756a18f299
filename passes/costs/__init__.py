"""Costs of groups and launches: cost models, and processes that evaluate them."""

from .analytic_cost import AnalyticCost, search_points
from .async_cost import AsyncCost, CostRequest, CostResult, PointsRequest, evaluate_costs, search_ahead
from .candidate_subgraphs import CandidateSubgraph, SubgraphKernels, needed_operations, partition_subgraph
from .cost_model import AnalyticModel, CostModel, KernelsQuery, MeasuredTimes, Questions
from .evaluators import BudgetedCost, Roofline
from .executor import Executor, Keys, LocalExecutor, Member, ModelQuery, ScheduleRequest, Workload
from .launch_schedules import MemberRow, schedule_products, schedule_row
from .shared_launches import shared_launch_bound, shared_launch_seconds
