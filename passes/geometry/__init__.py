"""Kernel geometry of candidate schedules, for numbers or arrays.

Sizes, tiles and shared memory."""

from .footprint import (
    Count,
    Cover,
    address_of,
    ceil_div,
    distinct,
    distinct_values,
    elements,
    is_scattered,
    least,
    places_of,
    product,
    random_groups,
    runs_of,
    segments_of,
    span,
)
from .mask_bounds import ONE_ROW, MaskBound, mask_bounds, tile_bounds
from .matrix_instructions import (
    FRAGMENT_SETS,
    has_alternating_sets,
    held_lane,
    held_swizzle,
    interleaved_instructions,
    lanes_along,
    least_block,
    least_chunk,
    mma_faults,
    mma_operands,
    promotion_depth,
    reads_shared_matrices,
    runs,
    side_swizzle,
    widest_swizzle,
)
from .row_sharing import (
    ROW_LANES,
    ROW_VECTOR,
    RegisterChain,
    cached_reads,
    can_stream_rows,
    drop_conversions,
    is_register_chain,
    is_row_maximum,
    joins_loop,
    maximises_scores,
    register_chain,
    running_maximum,
    shareable_loops,
    shifted_score,
    split_divisor,
    weighs_scores_alone,
    whole_loops,
)
from .scatter_bins import (
    ScatterBins,
    added_neighbours,
    bin_count,
    index_axes,
    is_scatter_only,
    scatter_bins,
    scatter_tile_dim,
)
from .schedule_template import (
    ScheduleParameter,
    ScheduleTemplate,
    SegmentTemplate,
    axis_classes,
    class_runs,
    is_matrix_like,
    next_power,
    outermost_dim,
    powers,
    traffic_dim,
    with_streamed_input,
)
from .schedules import geometry_of, schedule_of
from .segment_geometry import REGISTER_STAGED_ORDER, ROW_CACHE_UNITS, Columns, Geometry, geometries, numbers_of
from .shared_matrices import (
    EXCHANGED_VECTOR,
    MIN_PRODUCT_STAGES,
    PRODUCER_REGISTERS,
    MatrixTile,
    chained_numbers,
    exchanges_lanes,
    keeps_row_order,
    matrix_tile,
    producer_share,
    row_place,
    row_vector,
    shared_matrix_faults,
    teams_of,
)
from .shared_memory import (
    MIN_COPY_BYTES,
    has_constant_strides,
    line_fetch,
    row_divisions,
    shared_bytes,
    shared_layouts,
    streamed_segment,
    whole_row_fetch,
)
from .shared_tensors import (
    axis_places,
    exchange_dims,
    exchange_extents,
    extents_of,
    holds_rows,
    is_walked_by_rows,
    owned_dims,
    row_dim,
    shared_pitches,
    tensors_in_place,
    whole_dims,
    writer_of,
)
from .staged_tiles import (
    StagedTile,
    is_held,
    is_staged_once,
    lies_deep,
    main_read,
    staged_tiles,
    tile_pitches,
    tile_shape,
)
from .tile_chains import (
    MIN_TURN_STAGES,
    TileChain,
    column_pitch,
    numbers_of_columns,
    numbers_of_rows,
    takes_turns,
    tile_chain,
)
from .warp_split_k import (
    contiguous_side,
    may_split_k,
    partial_sum_elements,
    partial_sum_pitch,
    result_geometry,
    result_shares,
    result_vector,
)
