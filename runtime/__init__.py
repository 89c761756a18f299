"""Execution of plans: folders, memory, steps, and comparison of results."""

from .arrays import check_names, checked_inputs, random_inputs
from .concurrent_launches import make_concurrent
from .constant_images import ConstantImages, Share, without_elements
from .donated_buffers import DonatedSession
from .external_session import ExternalSession
from .first_wrong_step import first_wrong_step
from .hazards import LaunchDependencies, launch_dependencies
from .memory import align_bytes
from .onnx_oracle import has_onnxruntime, open_onnxruntime, run_onnxruntime
from .placed_plan import CONSTANTS, SCRATCH, OutputView, PlacedPlan, place_over_blocks
from .plan import Plan, PlannedModel, make_plan
from .plan_document import plain
from .plan_file import load_plan, plan_files, plan_of_files, save_plan, write_folder
from .program_file import PlannedStage, ProgramRecord, is_program, load_program, save_program
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
    "PlannedStage",
    "ProgramRecord",
    "Session",
    "Share",
    "StagedRecord",
    "StepCurve",
    "align_bytes",
    "check_names",
    "checked_inputs",
    "checked_state",
    "first_wrong_step",
    "has_onnxruntime",
    "html_page",
    "html_section",
    "is_program",
    "is_staged",
    "launch_dependencies",
    "load_plan",
    "load_program",
    "load_staged",
    "make_concurrent",
    "make_plan",
    "open_onnxruntime",
    "place_over_blocks",
    "plain",
    "plan_files",
    "plan_of_files",
    "random_inputs",
    "run_onnxruntime",
    "save_plan",
    "save_program",
    "save_staged",
    "versions_of",
    "without_elements",
    "write_folder",
]
