"""Rewrites of sums over rows that reduce memory traffic.

They cover totals, weights, squares about means, values that are rematerialised where long sums separate their
readers, and values of parameters that are computed once.
"""

from .blocked_variance import block_variances
from .check_units import find_ungroupable
from .contraction_recompute import Family, RecomputeChoice, recompute_contractions
from .deferred_normalisation import defer_normalisation
from .hierarchical_reduction import sum_rows_first
from .parameter_hoisting import hoist_parameters
from .reduction_cse import eliminate_common_reductions
from .rematerialisation import rematerialise
from .row_recompute import copy_rows
from .shifted_mean import shift_means
