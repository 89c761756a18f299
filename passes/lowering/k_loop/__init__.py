"""Software-pipelined K loop of a reduction, and the products in it."""

from .accumulate import accumulate, reduced_vector, vector_share
from .block_scales import scaled_sums
from .bulk_copies import (
    EMPTY,
    FULL,
    BulkPipeline,
    bulk_k_loop,
    bulk_pipeline,
    bulk_tiles,
    declared_pipeline,
    produced_k_loop,
)
from .hoisted_loads import MAX_HOISTED_REGISTERS, hoist_loads, is_resident_at_once
from .loop_ends import loop_end
from .multiply import Multiplication, multiplication
from .software_pipeline import (
    SharedPipeline,
    guard_fetch,
    k_loop,
    split_prologue,
    staged_tiles,
    stepped_k_loop,
    tile_load,
    warpgroup_k_loop,
)
from .walked_rows import streaming_blocks, walk_rows
from .warp_split_k import combine_warps, warp_sum_register
