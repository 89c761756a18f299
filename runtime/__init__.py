"""Execution of plans: folders, memory, steps, and comparison of results."""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .arrays import check_names, checked_inputs, host_array, random_inputs
    from .donated_buffers import DonatedSession
    from .external_session import ExternalSession
    from .files import (
        DynamicDocument,
        DynamicRecord,
        PlanDocument,
        PlannedBucket,
        PlannedPart,
        PlannedStage,
        ProgramDocument,
        ProgramRecord,
        StagedRecord,
        complete_files,
        document_type,
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
        write_document,
        write_folder,
    )
    from .memory import align_bytes
    from .onnx_oracle import has_onnxruntime, open_onnxruntime, run_onnxruntime
    from .placement import (
        CONSTANTS,
        SCRATCH,
        ArgumentAddress,
        ConstantImages,
        LaunchDependencies,
        LaunchParameters,
        PlacedPlan,
        Share,
        launch_dependencies,
        launch_parameters,
        make_concurrent,
        place_over_blocks,
        tensor_offset,
        without_elements,
    )
    from .plan import Plan, PlannedModel, make_plan
    from .plan_dump import show_plan
    from .session import Session
    from .state import HostState, checked_state
    from .step_comparison import WrongStep, first_wrong_step, wrong_steps
    from .versions import versions_of

__getattr__ = lazy_exports(__name__)
