"""Accesses to memory: sites, banks, copies and fetched rows."""

from .access import (
    access_vector,
    copied_width,
    decoding_cost,
    has_division,
    packed_vector,
    row_conflicts,
    running_axis,
    shared_row_vector,
    unmoved_elements,
    warp_lines,
    wavefronts,
)
from .banks import conflict_factor, shared_conflicts, warp_cycles
from .copies import copy_cost, steps_evenly, walks_evenly
from .evaluation_sites import EvaluationSite, ended_site, evaluation_site, output_site
from .row_fetches import uneven_fetch
from .tile_access import depth_vector, held_deep, register_staging_vector, tile_vector
