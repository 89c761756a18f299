"""Lowering of a group and its schedule to kernels of one thread."""

from .extract import extract
from .k_loop import MAX_HOISTED_REGISTERS, is_resident_at_once
from .layout import bulk_copy_faults, lay_out
from .lower import lower
from .outputs import ROW_STEPS
from .races import check_barriers
from .threads import max_window_elements
