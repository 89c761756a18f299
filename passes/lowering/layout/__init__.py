"""Layout of a block: staged tiles and matrix fragments."""

from .block_layout import (
    SCALES,
    BlockLayout,
    Frame,
    divide_tile,
    lay_out,
    read_padding,
    thread_guards,
    unique_writer_guards,
)
from .matrix_instructions import MmaLoop, held_register, held_rows_loop, mma_loop, products
from .staging import AxisBinding, Box, Tile, bind_dims, stage
from .tensor_boxes import TensorBox, lines_of
from .walking_boxes import WalkingBox, are_zero_at_ends, bulk_copy_faults, operand_box
