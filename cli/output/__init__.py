"""Output of commands: the terminal, pages, progress and times."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports
from . import console

if TYPE_CHECKING:
    from .common import (
        AnyPlan,
        compare_plan,
        first_wrong,
        is_dynamic,
        is_staged,
        note_uncompiled,
        own_onnx,
        plan_values,
        read_inputs,
        require_right_plan,
        write_arrays,
        write_text,
    )
    from .console import brief, size
    from .page import write_page, write_trace
    from .progress import CompileProgress
    from .reporting import fail, logging_to_stderr, report, report_bug
    from .times import time_table

__all__ = ["console"]
__getattr__ = lazy_exports(__name__)
