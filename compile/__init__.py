"""Entry points that compile a model to a plan.

`cuts.build`, the command line and other compilers call them.
"""

from .build import build, build_staged, load, staged_plan
from .cached_build import build_tuned
from .driver import build_graph, compile_model, compile_unmeasured, tune_graph
from .dynamic import DynamicPlan
from .loading import ModelLike, Shapes, Spec, load_model, load_spec
from .plan import CompiledPlan, plan_of
from .selection import decision_key, plan_key
from .staged import Compile, ProgramPlan, StagedPlan
from .torch_operator import torch_op
