"""Conversions of ONNX operations: one table for each family, merged."""

from collections.abc import Mapping

from ..call import Convert
from . import contraction, elementwise, indirect, movement, recurrent, reduction, resize, sampling, signal, window
from . import quantisation as quantised
from .selections import SELECTIONS

#: ONNX operation -> its conversion.
TABLE: Mapping[str, Convert] = {
    **elementwise.TABLE,
    **contraction.TABLE,
    **window.TABLE,
    **reduction.TABLE,
    **movement.TABLE,
    **resize.TABLE,
    **recurrent.TABLE,
    **indirect.TABLE,
    **signal.TABLE,
    **quantised.TABLE,
    **sampling.TABLE,
}
