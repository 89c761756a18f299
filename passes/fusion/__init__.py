"""Graph to fusion groups: kernel units, views, legality, normal form, Algorithm 1."""

from .cutting import copied
from .fold_tables import Folding, noted_foldings, remember_foldings
from .fold_units import drop_unused, fold_units
from .groups import Forms, Group, Workshop, canonical_names, form_key, form_text, rename_group
from .inline import FusionError, apply_guards
from .interpret import Points, along_row, interpret
from .legality import Policy, box_extent, issue_slots
from .normalise import Illegal
from .partition import neighbours, partition, settle, with_parts
from .partitioner import UNKNOWN, GroupEvaluator, Partitioner, Remembered
from .pieces import follow_pieces
from .programs import Meaning, Programs, Unit, build_programs
from .reorder import Order, natural, put_back, reorder, reorder_unit, taken
from .solve import solve
from .sums import (
    Family,
    UngroupableUnit,
    Way,
    centre_means,
    compute_again,
    divide_behind,
    divide_moments,
    find_ungroupable,
    products_again,
    share_sums,
    sum_rows_first,
)
from .views import Views, addressed, find_views

__all__ = [
    "UNKNOWN",
    "Family",
    "Folding",
    "Forms",
    "FusionError",
    "Group",
    "GroupEvaluator",
    "Illegal",
    "Meaning",
    "Order",
    "Partitioner",
    "Points",
    "Policy",
    "Programs",
    "Remembered",
    "UngroupableUnit",
    "Unit",
    "Views",
    "Way",
    "Workshop",
    "addressed",
    "along_row",
    "apply_guards",
    "box_extent",
    "build_programs",
    "canonical_names",
    "centre_means",
    "compute_again",
    "copied",
    "divide_behind",
    "divide_moments",
    "drop_unused",
    "find_ungroupable",
    "find_views",
    "fold_units",
    "follow_pieces",
    "form_key",
    "form_text",
    "interpret",
    "issue_slots",
    "natural",
    "neighbours",
    "noted_foldings",
    "partition",
    "products_again",
    "put_back",
    "remember_foldings",
    "rename_group",
    "reorder",
    "reorder_unit",
    "settle",
    "share_sums",
    "solve",
    "sum_rows_first",
    "taken",
    "with_parts",
]
