"""Graph to groups: statements cut into units, views, legality, normal form, Algorithm 1."""

from .centre import centre_means
from .fold_units import fold_units
from .groups import Group, Workshop, form_key
from .interpret import Points, interpret
from .legality import Policy, box_extent, issue_slots
from .pack import pack_constants
from .partition import GroupEvaluator, Partitioner, Remembered, partition, with_parts
from .programs import Programs, Unit, build_programs
from .split_reduction import Splitting, split_groups
from .views import Views, addressed, find_views

__all__ = [
    "Group",
    "GroupEvaluator",
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
    "box_extent",
    "build_programs",
    "centre_means",
    "find_views",
    "fold_units",
    "form_key",
    "interpret",
    "issue_slots",
    "pack_constants",
    "partition",
    "split_groups",
    "with_parts",
]
