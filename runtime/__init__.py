"""Execution of plans: folders, memory, steps, and comparison of results."""

from .arrays import check_names, checked_inputs, random_inputs
from .concurrent_launches import make_concurrent
from .constant_images import ConstantImages, Share, without_elements
from .donated_buffers import DonatedSession
from .external_session import ExternalSession
from .first_wrong_step import first_wrong_step
from .hazards import LaunchDependencies, launch_dependencies
from .memory import align_bytes
from .onnx_oracle import has_onnxruntime, run_onnxruntime
from .placed_plan import CONSTANTS, SCRATCH, OutputView, PlacedPlan, place_over_blocks
from .plan import Plan, PlannedModel, make_plan
from .plan_document import plain
from .plan_file import copy_plan, load_plan, save_plan
from .report import CandidateOutcome, Evidence, StepCurve, html_page, html_section
from .session import Session
from .staged_file import PlannedPart, StagedRecord, is_staged, load_staged, save_staged
from .state import HostState, checked_state
from .versions import versions_of

__all__ = [
    "CONSTANTS",
    "SCRATCH",
    "CandidateOutcome",
    "ConstantImages",
    "DonatedSession",
    "Evidence",
    "ExternalSession",
    "HostState",
    "LaunchDependencies",
    "OutputView",
    "PlacedPlan",
    "Plan",
    "PlannedModel",
    "PlannedPart",
    "Session",
    "Share",
    "StagedRecord",
    "StepCurve",
    "align_bytes",
    "check_names",
    "checked_inputs",
    "checked_state",
    "copy_plan",
    "first_wrong_step",
    "has_onnxruntime",
    "html_page",
    "html_section",
    "is_staged",
    "launch_dependencies",
    "load_plan",
    "load_staged",
    "make_concurrent",
    "make_plan",
    "place_over_blocks",
    "plain",
    "random_inputs",
    "run_onnxruntime",
    "save_plan",
    "save_staged",
    "versions_of",
    "without_elements",
]
