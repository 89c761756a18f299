"""Passes from a graph to kernels, and the interfaces of the pipeline."""

from .decisions import Decisions, ForeignDecisionsError, GroupDecision
from .evaluators import Roofline
from .fragments import Fragment, Priced, cut_fragment
from .launch_schedules import Alike, scheduled_alike
from .pipeline import compile_graph, graph_passes
from .pricing import Prices, Pricing, price
from .rewrites import WRITING
from .side_by_side import joined
from .structure import node_marks
from .workload import Kernels, Member, Planning, PlanningHere, Questions, Selector, Workload

__all__ = [
    "WRITING",
    "Alike",
    "Decisions",
    "ForeignDecisionsError",
    "Fragment",
    "GroupDecision",
    "Kernels",
    "Member",
    "Planning",
    "PlanningHere",
    "Priced",
    "Prices",
    "Pricing",
    "Questions",
    "Roofline",
    "Selector",
    "Workload",
    "compile_graph",
    "cut_fragment",
    "graph_passes",
    "joined",
    "node_marks",
    "price",
    "scheduled_alike",
]
