"""From a group and its schedule to what one thread does: block-level kernels, extraction, proofs of their barriers."""

from .extract import extract
from .frames import Frame, Layout, lay_out
from .lower import lower
from .races import check_barriers
from .staging import AxisBinding, Tile, bind_dims, local_vars, main_read, stage

__all__ = [
    "AxisBinding",
    "Frame",
    "Layout",
    "Tile",
    "bind_dims",
    "check_barriers",
    "extract",
    "lay_out",
    "local_vars",
    "lower",
    "main_read",
    "stage",
]
