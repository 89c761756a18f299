"""Entry points that compile a model to a plan.

`cuts.build`, the command line and other compilers call them.
"""

from typing import TYPE_CHECKING

from ..ir import lazy_exports
from .build import build, build_staged, load, staged_plan
from .cached_build import build_tuned
from .loading import ModelLike, Shapes, Spec, load_model, load_spec
from .plan import CompiledPlan, plan_of
from .torch_operator import torch_op

if TYPE_CHECKING:
    from .driver import build_graph, compile_model, compile_unmeasured, tune_graph
    from .selection import decision_key, plan_key
    from .staged import Compile, ProgramPlan, StagedPlan

__getattr__ = lazy_exports(__name__)
