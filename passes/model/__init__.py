"""Analytic models of candidate schedules: features, lower bound, and cost model."""

from .banks import conflict_factor
from .bound import Bound, bound, limiting
from .counts import NUMBERS, SUMS, Features
from .features import count_features, most_staged
from .footprint import Count, distinct_values
from .geometry import CARRIED, EIGHTHS, Columns, Geometry, geometries
from .least_work import group_work
from .meetings import bins_needed, turned_dim
from .pul_paper import pul
from .rank import rank
from .rank_constants import FITTED, RankConstants
from .structure import Knob, SegmentStructure, Structure, axis_classes, class_runs, is_matrix_like, next_power, powers
from .tiles import coordinate_count, own_carried, own_order, own_pad

__all__ = [
    "CARRIED",
    "EIGHTHS",
    "FITTED",
    "NUMBERS",
    "SUMS",
    "Bound",
    "Columns",
    "Count",
    "Features",
    "Geometry",
    "Knob",
    "RankConstants",
    "SegmentStructure",
    "Structure",
    "axis_classes",
    "bins_needed",
    "bound",
    "class_runs",
    "conflict_factor",
    "coordinate_count",
    "count_features",
    "distinct_values",
    "geometries",
    "group_work",
    "is_matrix_like",
    "limiting",
    "most_staged",
    "next_power",
    "own_carried",
    "own_order",
    "own_pad",
    "powers",
    "pul",
    "rank",
    "turned_dim",
]
