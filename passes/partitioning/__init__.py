"""Stages that partition a graph into kernels and choose their schedules."""

from .baseline_plan import plan_algorithms
from .choose_schedules import choose_schedules
from .form_groups import form_groups, split_long_reductions
from .horizontal_fusion import fuse_horizontally
from .refine_partition import refine_partition
from .repeated_groups import insert_layers
from .shared_launches import join_forms
from .update_inputs import update_inputs
