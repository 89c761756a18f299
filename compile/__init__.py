"""Entry points that compile a model to a plan.

`cuts.build`, the command line and other compilers call them.
"""

from .build import build, build_staged, load, staged_plan
from .cached_build import build_tuned
from .cached_decisions import decision_key
from .driver import build_graph, compile_model, compile_unmeasured, tune_graph
from .loading import ModelLike, Shapes, Spec, load_model, load_spec
from .plan import CompiledPlan, plan_of
from .plan_cache import plan_key
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
    "compile_model",
    "compile_unmeasured",
    "decision_key",
    "load",
    "load_model",
    "load_spec",
    "plan_key",
    "plan_of",
    "staged_plan",
    "torch_op",
    "tune_graph",
]
