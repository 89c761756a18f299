"""Times of kernels and plans of `cuts`, as observed."""

from .own_kernels import OwnKernels
from .own_plans import planned_launches
from .queries import find_own_kernels, find_own_plans, find_predictor, predict
