"""Dialects of C: types, helpers and texts of instructions."""

from .arithmetic import unsigned_of
from .bulk_text import CLUSTER_BEGIN, CLUSTER_WAIT, MBARRIER_FENCE, REGISTER_LIMIT
from .byte_conversions import OF_SUMS
from .dialect import Dialect
from .dialects import DIALECTS
from .mma_text import operand_words
from .warpgroup_text import BEGINS, EXCHANGED_RESULTS, HELD_ROWS, held_rows_words, swizzled_text
