"""Scatters: combinations at places that data name, deterministic or atomic."""

from .deterministic_scatter import make_scatters_atomic, make_scatters_deterministic
from .scatter_rows import index_tests
