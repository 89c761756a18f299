"""Execution of plans: folders, memory, steps, and comparison of results."""

from .arrays import check_names, checked_inputs, host_array, random_inputs
from .donated_buffers import DonatedSession
from .external_session import ExternalSession
from .files import (
    DynamicRecord,
    PlannedBucket,
    PlannedPart,
    PlannedStage,
    ProgramRecord,
    StagedRecord,
    load_plan,
    load_stages,
    plain,
    plan_content,
    plan_files,
    plan_of_files,
    save_dynamic,
    save_plan,
    save_program,
    save_staged,
    stages_type,
    with_document,
    write_folder,
)
from .first_wrong_step import first_wrong_step
from .memory import align_bytes
from .onnx_oracle import has_onnxruntime, open_onnxruntime, run_onnxruntime
from .placement import (
    CONSTANTS,
    SCRATCH,
    ConstantImages,
    LaunchDependencies,
    PlacedPlan,
    Share,
    launch_dependencies,
    make_concurrent,
    place_over_blocks,
    without_elements,
)
from .plan import Plan, PlannedModel, make_plan
from .report import CandidateOutcome, Evidence, StepCurve, html_page, html_section
from .session import Session
from .state import HostState, checked_state
from .versions import versions_of
