"""Output of commands: the terminal, pages, progress and times."""

from . import console
from .common import (
    AnyPlan,
    compare_plan,
    first_wrong,
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
