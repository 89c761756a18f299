"""Opening of plans, without the compiler: `cuts.load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..backends.native import is_packed
from ..ir import PlanError
from ..runtime import DynamicDocument, PlanDocument, ProgramDocument, document_type
from .plan import CompiledPlan, open_plan

if TYPE_CHECKING:
    from .dynamic import DynamicPlan
    from .staged import StagedPlan


def load(
    folder: str | os.PathLike[str], functions: Mapping[str, Callable[..., Any]] | None = None
) -> CompiledPlan | StagedPlan | DynamicPlan:
    """Open a plan's folder.

    A plan is code: load only plans from a trusted source.

    `functions` are those that `cuts.build_staged` was given, where it was.

    Raises `PlanError` for a packed plan.
    """
    if is_packed(folder):
        raise PlanError(f"{folder} is a packed plan", hint="open it with cuts.PackedPlan, or run it with 'cuts run'")
    content = document_type(folder)
    if content is PlanDocument:
        return open_plan(folder)
    if content is DynamicDocument:
        from .dynamic import open_dynamic

        return open_dynamic(folder)
    from .staged import open_model, open_program  # parts of such a plan may still be compiled

    return open_program(folder) if content is ProgramDocument else open_model(folder, functions)
