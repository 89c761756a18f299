"""Lowering of a group and its schedule to kernels of one thread."""

from .extract import extract
from .hoisted_loads import MAX_HOISTED_REGISTERS, is_resident_at_once
from .layout import AxisBinding, BlockLayout, Frame, Tile, bind_dims, bulk_copy_faults, lay_out, local_vars, stage
from .lower import lower
from .outputs import ROW_STEPS
from .privatised_scatter import bins_buffer
from .races import check_barriers
from .threads import MAX_WINDOW_ELEMENTS

__all__ = [
    "MAX_HOISTED_REGISTERS",
    "MAX_WINDOW_ELEMENTS",
    "ROW_STEPS",
    "AxisBinding",
    "BlockLayout",
    "Frame",
    "Tile",
    "bind_dims",
    "bins_buffer",
    "bulk_copy_faults",
    "check_barriers",
    "extract",
    "is_resident_at_once",
    "lay_out",
    "local_vars",
    "lower",
    "stage",
]
