"""Reading of folders that hold several plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...ir import PlanError
from .dynamic_file import DynamicRecord, dynamic_record
from .plan_document import DynamicDocument, ProgramDocument, StagedDocument, read_document
from .plan_file import read_files
from .program_file import ProgramRecord, program_record
from .staged_file import StagedRecord, staged_record

_Stages = TypeVar("_Stages", StagedRecord, ProgramRecord, DynamicRecord)
#: Class of a folder's content, and the function that makes it, by the class of plan.json.
_RECORDS: Mapping[type, tuple[type, Callable[..., Any]]] = {
    DynamicDocument: (DynamicRecord, dynamic_record),
    StagedDocument: (StagedRecord, staged_record),
    ProgramDocument: (ProgramRecord, program_record),
}


def load_stages(folder: str | os.PathLike[str], expected: type[_Stages]) -> _Stages:
    """Read the folder of a plan in stages, checking every digest.

    Raises `PlanError` where it has no such content, or contradicts itself.
    """
    root = Path(folder)
    document = read_document(root)
    found, make_record = _RECORDS.get(type(document), (None, None))
    if found is not expected or make_record is None:
        raise PlanError(f"{root} is no plan in such stages", hint="open it with cuts.load")
    files = read_files(root, document.files)
    try:
        record: _Stages = make_record(root, document, files)
    except (KeyError, ValueError) as error:
        raise PlanError(f"{root}: the plan contradicts itself: {error}", hint="write the plan again") from error
    return record
