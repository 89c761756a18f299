"""Placement of a plan in memory: hazards, constants and cache policy."""

from .concurrent_launches import make_concurrent
from .constant_images import ConstantImages, Share, without_elements
from .hazards import LaunchDependencies, launch_dependencies
from .launch_parameters import ArgumentAddress, LaunchParameters, launch_parameters, tensor_offset
from .placed_plan import CONSTANTS, SCRATCH, PlacedPlan, place_in_arena, place_over_blocks, tensor_address
from .sequence_parts import SequencePart, place_in_parts
