"""Files of plans, of staged models and of exported programs."""

from .plan_document import plain
from .plan_file import load_plan, plan_files, plan_of_files, save_plan, write_folder
from .program_file import PlannedStage, ProgramRecord, is_program, load_program, save_program
from .staged_file import PlannedPart, StagedRecord, is_staged, load_staged, save_staged

__all__ = [
    "PlannedPart",
    "PlannedStage",
    "ProgramRecord",
    "StagedRecord",
    "is_program",
    "is_staged",
    "load_plan",
    "load_program",
    "load_staged",
    "plain",
    "plan_files",
    "plan_of_files",
    "save_plan",
    "save_program",
    "save_staged",
    "write_folder",
]
