"""Files of plans, of staged models and of exported programs."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .dynamic_file import DynamicRecord, PlannedBucket, save_dynamic
    from .plan_document import DynamicDocument, PlanDocument, ProgramDocument, document_type, plain, write_document
    from .plan_file import load_plan, plan_of_files
    from .plan_writer import complete_files, plan_content, plan_files, save_plan, write_folder
    from .program_file import PlannedStage, ProgramRecord, save_program
    from .staged_file import PlannedPart, StagedRecord, save_staged
    from .stages_file import load_stages

__getattr__ = lazy_exports(__name__)
