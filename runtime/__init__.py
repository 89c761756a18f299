"""Execution of plans: folders, memory, steps, and comparison of results."""

from .arrays import check_names, checked_inputs, random_inputs
from .concurrent_launches import make_concurrent
from .constant_images import ConstantImages, Share, without_elements
from .donated_buffers import DonatedSession
from .executor import Session
from .external_buffers import ExternalLayout, ExternalSession, OutputView, layout_of
from .first_wrong_step import first_wrong_step
from .hazards import LaunchDependencies, launch_dependencies
from .memory import Lifetime, align_bytes, place_buffers
from .onnx_oracle import has_onnxruntime, run_onnxruntime
from .plan import Plan, PlannedModel, extent_bytes, loop_carried_buffers, make_plan
from .plan_document import plain
from .plan_file import load_plan, plan_files, plan_of_files, save_plan, write_folder
from .report import CandidateOutcome, Evidence, StepCurve, html_page, html_section
from .staged_file import PlannedPart, StagedRecord, is_staged, load_staged, save_staged
from .state import HostState, checked_state
from .versions import versions_of

__all__ = [
    "CandidateOutcome",
    "ConstantImages",
    "DonatedSession",
    "Evidence",
    "ExternalLayout",
    "ExternalSession",
    "HostState",
    "LaunchDependencies",
    "Lifetime",
    "OutputView",
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
    "extent_bytes",
    "first_wrong_step",
    "has_onnxruntime",
    "html_page",
    "html_section",
    "is_staged",
    "launch_dependencies",
    "layout_of",
    "load_plan",
    "load_staged",
    "loop_carried_buffers",
    "make_concurrent",
    "make_plan",
    "place_buffers",
    "plain",
    "plan_files",
    "plan_of_files",
    "random_inputs",
    "run_onnxruntime",
    "save_plan",
    "save_staged",
    "versions_of",
    "without_elements",
    "write_folder",
]
