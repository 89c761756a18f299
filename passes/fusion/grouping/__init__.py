"""Groups of units and the partition of a graph into them."""

from .combine_partitions import combine_partitions
from .group_builder import GroupBuilder
from .groups import Group, canonical_names, form_key, form_text, rename_group
from .optimal_partition import optimal_partition
from .partition import improve, neighbours, partition, with_parts
from .partitioner import UNKNOWN, CachedEvaluator, GroupEvaluator, Partitioner
from .slice_updates import run_over_updates, writers_of
