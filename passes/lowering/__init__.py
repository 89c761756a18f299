"""Lowering of a group and its schedule to kernels of one thread."""

from .atoms import FRAGMENT_SETS, atom_faults, atom_operands, lanes_along, mixed_atoms
from .early import EARLY, fits_at_once
from .edges import Edge, edge_of
from .extract import extract
from .fetch import BUSY, NARROWEST_COPY
from .frames import BlockLayout, Frame, axis_places, extents_of, in_place, in_rows, lay_out, passed_pitches
from .join_warps import joined_places, joined_shares, joined_vector, written_side
from .lower import lower
from .meetings import Meeting, bins_of, may_meet, meeting_of, own_axes
from .outputs import ROW_STEPS
from .races import check_barriers
from .rows import kept_reads, may_share
from .staging import AxisBinding, Tile, bind_dims, local_vars, main_read, stage
from .streams import comes_in_parts
from .threads import LARGEST

__all__ = [
    "BUSY",
    "EARLY",
    "FRAGMENT_SETS",
    "LARGEST",
    "NARROWEST_COPY",
    "ROW_STEPS",
    "AxisBinding",
    "BlockLayout",
    "Edge",
    "Frame",
    "Meeting",
    "Tile",
    "atom_faults",
    "atom_operands",
    "axis_places",
    "bind_dims",
    "bins_of",
    "check_barriers",
    "comes_in_parts",
    "edge_of",
    "extents_of",
    "extract",
    "fits_at_once",
    "in_place",
    "in_rows",
    "joined_places",
    "joined_shares",
    "joined_vector",
    "kept_reads",
    "lanes_along",
    "lay_out",
    "local_vars",
    "lower",
    "main_read",
    "may_meet",
    "may_share",
    "meeting_of",
    "mixed_atoms",
    "own_axes",
    "passed_pitches",
    "stage",
    "written_side",
]
