"""Files of plans, of staged models and of exported programs."""

from .plan_document import plain
from .plan_file import load_plan, plan_files, plan_of_files, save_plan, write_folder
from .program_file import PlannedStage, ProgramRecord, save_program
from .staged_file import PlannedPart, StagedRecord, save_staged
from .stages_file import load_stages, stages_type

__all__ = [
    "PlannedPart",
    "PlannedStage",
    "ProgramRecord",
    "StagedRecord",
    "load_plan",
    "load_stages",
    "plain",
    "plan_files",
    "plan_of_files",
    "save_plan",
    "save_program",
    "save_staged",
    "stages_type",
    "write_folder",
]
