"""Entry points that compile a model to a plan.

`cuts.build`, the command line and other compilers call them.
"""

from .build import build, build_staged, load, staged_plan
from .cached_build import build_tuned
from .driver import build_graph, compile_model
from .loading import ModelLike, Shapes, Spec, load_model, load_spec
from .plan import CompiledPlan, plan_of
from .plan_cache import clear_plans, plans_info
from .staged_plan import Compile, StagedPlan
from .staged_program import ProgramPlan
from .torch_operator import torch_op

__all__ = [
    "Compile",
    "CompiledPlan",
    "ModelLike",
    "ProgramPlan",
    "Shapes",
    "Spec",
    "StagedPlan",
    "build",
    "build_graph",
    "build_staged",
    "build_tuned",
    "clear_plans",
    "compile_model",
    "load",
    "load_model",
    "load_spec",
    "plan_of",
    "plans_info",
    "staged_plan",
    "torch_op",
]
