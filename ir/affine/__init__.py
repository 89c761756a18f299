"""Affine toolkit: quasi-affine indices, guards, ranges, and solutions of index equations."""

from .addresses import (
    WIDEST_BYTES,
    delinearise,
    linearise,
    longest_vector,
    vector_address,
    vector_guards,
    vector_piece,
    vector_widths,
)
from .guard import (
    Guard,
    MoveGuards,
    MoveIndex,
    coarsen,
    congruence,
    live_guards,
    map_guards,
    order_lookups_last,
    substitute_guards,
)
from .index import (
    ZERO,
    Clamp,
    FloorDiv,
    Index,
    IndexLike,
    Indirect,
    Mod,
    Primary,
    Var,
    as_index,
    clamp,
    floordiv,
    is_affine,
    modulo,
    primary_index,
)
from .invert import Inverse, invert
from .ranges import confine, is_injective, proven, ranges
from .solve import is_bijection, solve
from .tables import straight_index, table_index
from .traversal import indirects, map_primaries, primaries, rename_index, steps_of, substitute, variables
from .values import Values, evaluate, index_value
