"""Cached build: compilation with measured times, shared by all entry points."""

from __future__ import annotations

from time import perf_counter

from ..backends.library import installed_libraries
from ..ir import CompileOptions, Graph, Target
from ..ops import warn_of_empty_results
from .loading import Spec
from .plan import CompiledPlan
from .selection import PlanCache, decisions_digest

#: Shortest build, in seconds, whose plan is cached for later processes, and the most bytes of weights that are cached
#: with a plan that no search made.
MIN_CACHED_BUILD_SECONDS, MAX_CACHED_WEIGHT_BYTES = 0.3, 256 << 20


def build_tuned(
    graph: Graph,
    spec: Spec,
    target: Target,
    options: CompileOptions,
    *,
    tune: bool = False,
    frozen: bool = False,
    libraries: bool = True,
) -> CompiledPlan:
    """Compile a graph.

    With `tune` candidates are timed on the target's device, for at most the options' budget, and with `libraries`, in
    mode `mixed`, routines of vendors' libraries among them, where these are installed; with `frozen` only results that
    the tuning database has are used.

    Raises `UsageError` where a frozen result is missing.
    """
    from .driver import build_graph, tune_graph  # the passes are imported where no plan is cached

    if not (tune or frozen) or target.dialect == "reference":
        return build_graph(graph, spec, target, options)
    from ..search import Settings, tuning_session

    settings = Settings(libraries=libraries, pruning=options.pruning)
    with tuning_session(target, budget=options.begin(), frozen=frozen, settings=settings) as session:
        return tune_graph(graph, spec, target, options, session)


def build_cached(
    graph: Graph, spec: Spec, target: Target, options: CompileOptions, *, tune: bool = False, libraries: bool = True
) -> CompiledPlan:
    """Compile a graph like `build_tuned`, or reuse a cached plan.

    The plan of an earlier process is reused where its options were the same.
    """
    cache = PlanCache.of_options(graph, spec, target, options, tune, libraries and installed_libraries())
    found = cache.find() if cache else None
    if found is not None:
        return found
    start = perf_counter()
    made = build_tuned(graph, spec, target, options, tune=tune, libraries=libraries)
    if cache and perf_counter() - start > MIN_CACHED_BUILD_SECONDS:
        cache.save(made)
    return made


def build_stored(
    graph: Graph,
    spec: Spec,
    target: Target,
    options: CompileOptions,
    *,
    tune: bool = False,
    frozen: bool = False,
    libraries: bool = True,
) -> CompiledPlan:
    """Compile a graph, or reuse a plan that needed no search.

    Nothing is reused where a search's decisions are replayed. With a search it is `build_tuned`.
    """
    if tune or frozen or not _is_stored(graph, target, options):
        return build_tuned(graph, spec, target, options, tune=tune, frozen=frozen, libraries=libraries)
    wishes = "build", options.horizontal_fusion, decisions_digest(target, options)
    cache = PlanCache.of_options(graph, spec, target, options, *wishes)
    found = cache.find() if cache else None
    if found is not None:
        warn_of_empty_results(graph, spec.registry)
        return found
    from .driver import build_graph
    from .selection import has_cached_decisions

    start = perf_counter()
    made = build_graph(graph, spec, target, options)
    slow = perf_counter() - start > MIN_CACHED_BUILD_SECONDS
    if cache and slow and not has_cached_decisions(graph, spec, target, options):
        cache.save(made)
    return made


def _is_stored(graph: Graph, target: Target, options: CompileOptions) -> bool:
    """Return whether the plan of a graph is worth to be stored: its passes run only for it."""
    watched = options.shows or options.plain or options.verifies_stages or options.budget is not None
    small = sum(array.nbytes for array in graph.constants.values()) <= MAX_CACHED_WEIGHT_BYTES
    return small and not watched and target.dialect != "reference"
