"""Files of plans, of staged models and of exported programs."""

from .dynamic_file import DynamicRecord, PlannedBucket, save_dynamic
from .plan_document import plain, write_document
from .plan_file import (
    complete_files,
    load_plan,
    plan_content,
    plan_files,
    plan_of_files,
    save_plan,
    write_folder,
)
from .program_file import PlannedStage, ProgramRecord, save_program
from .staged_file import PlannedPart, StagedRecord, save_staged
from .stages_file import load_stages, stages_type
