"""Building with measured times where they are asked for: what every door of the library does alike."""

from __future__ import annotations

from ..ir import CompileOptions, Graph, Target
from .driver import build_graph
from .loading import Spec
from .plan import CompiledPlan


def build_tuned(
    graph: Graph,
    spec: Spec,
    target: Target,
    options: CompileOptions,
    *,
    tune: bool = False,
    frozen: bool = False,
    libraries: bool = False,
) -> CompiledPlan:
    """Compile a graph. With `tune` candidates are timed on the target's device, for at most the options' budget, and
    with `libraries` routines of vendors' libraries among them; with `frozen` only results that the tuning database has
    are used.

    Raises `UsageError` where a frozen result is missing.
    """
    if not (tune or frozen) or target.dialect == "reference":
        return build_graph(graph, spec, target, options)
    from ..search import Settings, tuning_session

    settings = Settings(libraries=libraries)
    with tuning_session(target, budget=options.begin(), frozen=frozen, settings=settings) as selector:
        return build_graph(graph, spec, target, options, selector)
