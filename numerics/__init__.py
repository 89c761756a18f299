"""Numbers that are compared: tolerances, error growth, inputs, samples and comparisons."""

from .comparison import (
    Comparison,
    compare,
    compare_outputs,
    magnitude,
    mean_error,
    overflow_message,
    relative_error,
    require_correct,
    stored_overflow,
)
from .error_growth import amplification
from .group_inputs import input_numbers
from .plan_comparison import (
    Outputs,
    compare_samples,
    failed_comparisons,
    informative_outputs,
    perturbation_effects,
    replace_overflow,
)
from .random_numbers import PERIOD
from .reference import run_reference, value_tolerances
from .tolerance import epsilon, group_tolerance, tolerance
from .validation_inputs import input_scales, permute_inputs, perturb_arrays
