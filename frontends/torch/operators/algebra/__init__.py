"""Algebra beyond the core: grouped products, distances, special functions, factorisations."""

from ...import_context import Convert
from . import distances, groups, matrices, special

TABLE: dict[str, Convert] = {**groups.TABLE, **distances.TABLE, **special.TABLE, **matrices.TABLE}
