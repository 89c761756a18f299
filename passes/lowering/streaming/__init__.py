"""Rows in parts: column sums, online softmax, chains of contractions."""

from .chained_contraction import lower_chained_contraction
from .column_sums import emit_column_sums
from .online_softmax import lower_online_softmax
from .register_chain import lower_register_chain
from .tile_chain import lower_tile_chain
