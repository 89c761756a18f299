"""Conversions of PyTorch operations: one table for each family, merged."""

from ..import_context import Convert
from . import (
    arithmetic,
    complex_pairs,
    cumulative,
    elementwise,
    fourier,
    gradients,
    indexing,
    layers,
    masks,
    memory,
    movement,
    reduction,
    resizing,
    scatter,
    windows,
)
from .complex_pairs import Complex
from .masks import MaskedElements

TABLE: dict[str, Convert] = {
    **elementwise.TABLE,
    **arithmetic.TABLE,
    **movement.TABLE,
    **indexing.TABLE,
    **layers.TABLE,
    **reduction.TABLE,
    **cumulative.TABLE,
    **scatter.TABLE,
    **windows.TABLE,
    **resizing.TABLE,
    **masks.TABLE,
    **memory.TABLE,
    **complex_pairs.TABLE,
    **fourier.TABLE,
    **gradients.TABLE,
}
ELEMENTWISE = {*elementwise.TABLE.values(), *arithmetic.TABLE.values()}
OF_COMPLEX = {**complex_pairs.OF_COMPLEX, **fourier.OF_COMPLEX}

__all__ = ["ELEMENTWISE", "OF_COMPLEX", "TABLE", "Complex", "MaskedElements", "complex_pairs", "masks"]
