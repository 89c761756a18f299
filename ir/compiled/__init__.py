"""Compiled graphs: options and budget of a compilation, kernels, steps and storages."""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .budget import (
        ALGORITHMS_SHARE,
        FULL_SHARE,
        GRACE_SECONDS,
        MODEL_SHARE,
        PARTITION_SHARE,
        REFINEMENT_SHARE,
        SCHEDULES_SHARE,
        UNSEARCHED_SHARE,
        Budget,
        BudgetShares,
        processor_count,
    )
    from .compiled_graph import CompiledGraph, RepeatedSteps, Step, launches
    from .launch import (
        FALLBACK_KEY,
        MAX_LABEL,
        WAITING_SUFFIX,
        Argument,
        KernelFunction,
        Storage,
        kernel_label,
        source_suffix,
    )
    from .object_cache import ObjectCache
    from .options import CompileOptions, Mode
    from .pruning import BOUND_PRUNING, PRUNING_RULES, Pruning, PruningRule

__getattr__ = lazy_exports(__name__)
