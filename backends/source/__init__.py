"""Source text of kernels: one printer, and a table of dialects."""

from .dialect import DIALECTS
from .emit import emit
from .text_size import unrolled_statements
