"""Optimisations of one thread's kernel: merged, vectorised and interleaved accesses, shared reciprocals."""

from .fixed_roundings import fix_roundings
from .interleaved_copies import spread_copies
from .quotient_windows import merge_quotients
from .reciprocal_division import share_reciprocals
from .vectorise import vectorise_accesses
from .windows import max_window_elements, merge_windows
