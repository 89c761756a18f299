"""Scatters: sums at places that data name, in a fixed order or in any."""

from .deterministic_scatter import make_scatters_atomic, make_scatters_deterministic
from .scatter_rows import index_tests
