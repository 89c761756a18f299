"""Analytic models of candidate schedules: features, lower bound, and cost model."""

from .banks import conflict_factor
from .cost_coefficients import FITTED_COEFFICIENTS, CostCoefficients
from .cost_model import estimate_time
from .feature_schema import NUMBERS, SUMS, Features
from .features import count_features, most_staged
from .footprint import Count, distinct_values
from .geometry import REGISTER_STAGED_ORDER, ROW_CACHE_UNITS, Columns, Geometry, geometries
from .lower_bound import Bound, limiting, lower_bound
from .pul_paper import pul
from .roofline import group_work
from .scatter_cost import bin_count, scatter_tile_dim
from .schedule_template import (
    ScheduleParameter,
    ScheduleTemplate,
    SegmentTemplate,
    axis_classes,
    class_runs,
    is_matrix_like,
    next_power,
    powers,
)
from .tiles import coordinate_count, is_register_staged, own_order, own_pad

__all__ = [
    "FITTED_COEFFICIENTS",
    "NUMBERS",
    "REGISTER_STAGED_ORDER",
    "ROW_CACHE_UNITS",
    "SUMS",
    "Bound",
    "Columns",
    "CostCoefficients",
    "Count",
    "Features",
    "Geometry",
    "ScheduleParameter",
    "ScheduleTemplate",
    "SegmentTemplate",
    "axis_classes",
    "bin_count",
    "class_runs",
    "conflict_factor",
    "coordinate_count",
    "count_features",
    "distinct_values",
    "estimate_time",
    "geometries",
    "group_work",
    "is_matrix_like",
    "is_register_staged",
    "limiting",
    "lower_bound",
    "most_staged",
    "next_power",
    "own_order",
    "own_pad",
    "powers",
    "pul",
    "scatter_tile_dim",
]
