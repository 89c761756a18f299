"""Analytic models of candidate schedules: features, lower bound, and cost model."""

from .cost_model import estimate_time
from .feature_schema import NUMBERS, SUMS, Features
from .features import count_features, features_of
from .lower_bound import Bound, least_seconds, limiting, lower_bound
from .memory_access import conflict_factor, running_axis
from .pul_paper import pul
from .pul_printed import printed_pul
from .roofline import group_work
