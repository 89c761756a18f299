"""Rows in parts: online softmax and chained contractions."""

from .chained_contraction import lower_chained_contraction
from .online_softmax import lower_online_softmax

__all__ = ["lower_chained_contraction", "lower_online_softmax"]
