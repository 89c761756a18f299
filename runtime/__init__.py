"""Execution of plans: folders, memory, steps, and comparison of results."""

from .arrays import check_names, checked_inputs, random_inputs
from .branches import in_branches
from .carried import CarriedSession
from .constant_images import ConstantImages, Share, without_elements
from .executor import Session
from .in_place import InPlaceSession, Layout, Outlet, layout_of
from .memory import Lifetime, aligned, place_buffers
from .onnx_oracle import has_onnxruntime, run_onnxruntime
from .plan import Plan, PlannedModel, across_turns, extent_bytes, make_plan
from .plan_document import plain
from .plan_file import copy_plan, load_plan, save_plan
from .report import Evidence, StepCurve, Tried, html_page, html_section
from .staged_file import PlannedPart, StagedRecord, is_staged, load_staged, save_staged
from .state import HostState, checked_state
from .verify import Comparison, compare, first_wrong_step, outgrown, require_right
from .versions import versions_of
from .waits import Waits, waits_of

__all__ = [
    "CarriedSession",
    "Comparison",
    "ConstantImages",
    "Evidence",
    "HostState",
    "InPlaceSession",
    "Layout",
    "Lifetime",
    "Outlet",
    "Plan",
    "PlannedModel",
    "PlannedPart",
    "Session",
    "Share",
    "StagedRecord",
    "StepCurve",
    "Tried",
    "Waits",
    "across_turns",
    "aligned",
    "check_names",
    "checked_inputs",
    "checked_state",
    "compare",
    "copy_plan",
    "extent_bytes",
    "first_wrong_step",
    "has_onnxruntime",
    "html_page",
    "html_section",
    "in_branches",
    "is_staged",
    "layout_of",
    "load_plan",
    "load_staged",
    "make_plan",
    "outgrown",
    "place_buffers",
    "plain",
    "random_inputs",
    "require_right",
    "run_onnxruntime",
    "save_plan",
    "save_staged",
    "versions_of",
    "waits_of",
    "without_elements",
]
