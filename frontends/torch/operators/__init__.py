"""Conversions of PyTorch operations: one table for each family, merged."""

from ..import_context import Convert
from . import (
    algebra,
    arithmetic,
    bit_views,
    complex_pairs,
    cumulative,
    elementwise,
    fourier,
    gradients,
    indexed,
    layers,
    memory,
    movement,
    reduction,
    regions,
    resizing,
    windows,
)
from .complex_pairs import Complex
from .indexed import MaskedElements, masks

TABLE: dict[str, Convert] = {
    **elementwise.TABLE,
    **arithmetic.TABLE,
    **movement.TABLE,
    **indexed.TABLE,
    **layers.TABLE,
    **reduction.TABLE,
    **cumulative.TABLE,
    **windows.TABLE,
    **regions.TABLE,
    **resizing.TABLE,
    **memory.TABLE,
    **bit_views.TABLE,
    **complex_pairs.TABLE,
    **fourier.TABLE,
    **gradients.TABLE,
    **algebra.TABLE,
}
ELEMENTWISE = {*elementwise.TABLE.values(), *arithmetic.TABLE.values()}
OF_COMPLEX = {**complex_pairs.OF_COMPLEX, **fourier.OF_COMPLEX}
