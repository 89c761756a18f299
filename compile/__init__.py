"""Entry points that compile a model to a plan.

The command line and other compilers call them, and `cuts.build`, which is in `build.py`. A name is imported at its
first use: `load` opens a plan without the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .build import build_staged, staged_plan
    from .cached_build import build_tuned
    from .driver import build_graph, compile_model, compile_unmeasured, tune_graph
    from .loading import ModelLike, Shapes, Spec, load_model, load_spec, quantise_model
    from .opening import load
    from .plan import CompiledPlan, plan_of
    from .selection import decision_key, plan_key
    from .staged import Compile, ProgramPlan, StagedPlan
    from .torch_operator import torch_op

#: Module -> the public names that it is home to.
_HOMES = {
    ".build": ("build_staged", "staged_plan"),
    ".cached_build": ("build_tuned",),
    ".driver": ("build_graph", "compile_model", "compile_unmeasured", "tune_graph"),
    ".loading": ("ModelLike", "Shapes", "Spec", "load_model", "load_spec", "quantise_model"),
    ".opening": ("load",),
    ".plan": ("CompiledPlan", "plan_of"),
    ".selection": ("decision_key", "plan_key"),
    ".staged": ("Compile", "ProgramPlan", "StagedPlan"),
    ".torch_operator": ("torch_op",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a name of the package at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value
