"""Constants of narrow numbers: operations that widen them, integers of fewer bits."""

from .packed_bits import needed_bits, pack_array, unpacking_statement
from .packed_constants import PackedConstants, repeated_number
from .packed_units import pack_bits
