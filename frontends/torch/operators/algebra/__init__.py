"""Algebra beyond the core: grouped and quantised products, distances, special functions, factorisations."""

from ...import_context import Convert
from . import distances, groups, matrices, packed_weights, quantised_products, special

TABLE: dict[str, Convert] = {
    **groups.TABLE,
    **distances.TABLE,
    **special.TABLE,
    **matrices.TABLE,
    **quantised_products.TABLE,
    **packed_weights.TABLE,
}
