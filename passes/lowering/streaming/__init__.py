"""Rows in parts: online softmax, chained contractions, chains in registers."""

from .chained_contraction import lower_chained_contraction
from .online_softmax import lower_online_softmax
from .register_chain import lower_register_chain
from .tile_chain import lower_tile_chain
