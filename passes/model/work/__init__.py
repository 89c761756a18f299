"""Work of a candidate schedule's reductions: loads, fetches, matrix instructions, cross-thread combinations."""

from .column_sums import add_column_sums
from .kept_sums import add_kept_sums
from .matrix_instructions import TENSOR_CORES, add_chain_overhead
from .reductions import add_reduction
from .totals import Totals
from .walked_rows import add_walk
