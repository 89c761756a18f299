"""Lowering of a group and its schedule to kernels of one thread."""

from .block_layout import (
    BlockLayout,
    Frame,
    axis_places,
    extents_of,
    is_walked_by_rows,
    lay_out,
    shared_pitches,
    tensors_in_place,
)
from .extract import extract
from .fetch import MIN_BUSY_SHARE, MIN_COPY_BYTES
from .hoisted_loads import MAX_HOISTED_REGISTERS, is_resident_at_once
from .lower import lower
from .mask_bounds import MaskBound, mask_bound
from .matrix_instructions import FRAGMENT_SETS, interleaved_instructions, lanes_along, mma_faults, mma_operands
from .online_softmax import can_stream_rows
from .outputs import ROW_STEPS
from .privatised_scatter import ScatterBins, bins_buffer, index_axes, is_scatter_only, scatter_bins
from .races import check_barriers
from .rows import cached_reads, shareable_loops
from .staging import AxisBinding, Tile, bind_dims, local_vars, main_read, stage
from .threads import MAX_WINDOW_ELEMENTS
from .warp_split_k import contiguous_side, partial_sum_elements, result_shares, result_vector

__all__ = [
    "FRAGMENT_SETS",
    "MAX_HOISTED_REGISTERS",
    "MAX_WINDOW_ELEMENTS",
    "MIN_BUSY_SHARE",
    "MIN_COPY_BYTES",
    "ROW_STEPS",
    "AxisBinding",
    "BlockLayout",
    "Frame",
    "MaskBound",
    "ScatterBins",
    "Tile",
    "axis_places",
    "bind_dims",
    "bins_buffer",
    "cached_reads",
    "can_stream_rows",
    "check_barriers",
    "contiguous_side",
    "extents_of",
    "extract",
    "index_axes",
    "interleaved_instructions",
    "is_resident_at_once",
    "is_scatter_only",
    "is_walked_by_rows",
    "lanes_along",
    "lay_out",
    "local_vars",
    "lower",
    "main_read",
    "mask_bound",
    "mma_faults",
    "mma_operands",
    "partial_sum_elements",
    "result_shares",
    "result_vector",
    "scatter_bins",
    "shareable_loops",
    "shared_pitches",
    "stage",
    "tensors_in_place",
]
