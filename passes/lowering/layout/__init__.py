"""Layout of a block: address tables, staged tiles and matrix fragments."""

from .address_tables import AddressTables, FlattenedAxis, use_address_tables
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
from .matrix_instructions import MmaLoop, held_register, mma_loop, products
from .staging import AxisBinding, Box, Tile, bind_dims, stage
from .tensor_boxes import TensorBox, bulk_copy_faults, tensor_box
