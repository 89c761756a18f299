"""Dialects of C: types, helpers and texts of instructions."""

from .arithmetic import unsigned_of
from .bulk_text import MAP_WORDS, MBARRIER_FENCE, REGISTER_LIMIT
from .dialects import DIALECTS, Dialect
from .mma_text import operand_words
from .warpgroup_text import swizzled_text

__all__ = [
    "DIALECTS",
    "MAP_WORDS",
    "MBARRIER_FENCE",
    "REGISTER_LIMIT",
    "Dialect",
    "operand_words",
    "swizzled_text",
    "unsigned_of",
]
