"""Graph to groups: statements cut into units, views, legality, normal form, Algorithm 1."""

from .centre import centre_means
from .fold_units import fold_units
from .groups import Group, Workshop, form_key, rename_group
from .interpret import Points, along_row, interpret
from .legality import Policy, box_extent, issue_slots
from .normalise import Illegal
from .partition import GroupEvaluator, Partitioner, Remembered, neighbours, partition, with_parts
from .pieces import follow_pieces
from .programs import Programs, Unit, build_programs, copied
from .reorder import Order, natural, put_back, reorder, reorder_unit, taken
from .settle import settle
from .share_sums import share_sums
from .solve import solve
from .split_reduction import Splitting, split_groups
from .views import Views, addressed, find_views

__all__ = [
    "Group",
    "GroupEvaluator",
    "Illegal",
    "Order",
    "Partitioner",
    "Points",
    "Policy",
    "Programs",
    "Remembered",
    "Splitting",
    "Unit",
    "Views",
    "Workshop",
    "addressed",
    "along_row",
    "box_extent",
    "build_programs",
    "centre_means",
    "copied",
    "find_views",
    "fold_units",
    "follow_pieces",
    "form_key",
    "interpret",
    "issue_slots",
    "natural",
    "neighbours",
    "partition",
    "put_back",
    "rename_group",
    "reorder",
    "reorder_unit",
    "settle",
    "share_sums",
    "solve",
    "split_groups",
    "taken",
    "with_parts",
]
