"""Entry points that compile a model to a plan.

The command line and other compilers call them, and `cuts.build`, which is in `build.py`. A name is imported at its
first use: `load` opens a plan without the compiler.
"""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .build import build_staged, staged_plan
    from .cached_build import build_tuned
    from .driver import build_graph, compile_model, compile_unmeasured, tune_graph
    from .dynamic import DynamicPlan
    from .loading import ModelLike, Shapes, Spec, load_model, load_spec, quantise_model
    from .opening import load
    from .plan import CompiledPlan, plan_of
    from .selection import decision_key, plan_key
    from .staged import Compile, ProgramPlan, StagedPlan
    from .torch_operator import torch_op

__getattr__ = lazy_exports(__name__)
