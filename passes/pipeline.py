"""Pipeline from a graph to kernels: the graph passes, then `STAGES`.

Views come before the partition because a movement that is a view needs no group; schedules come after it because they
are per kernel, and equal groups share one. Each stage can be printed and stopped after, and its result is verified
where the options ask for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from ..ir import (
    PRECISIONS,
    CompiledGraph,
    CompileOptions,
    Graph,
    PrecisionName,
    Target,
    UsageError,
    quote,
)
from ..ops import Registry
from .assemble import assemble_kernels
from .context import CompileContext, Emit
from .costs import Executor, LocalExecutor
from .fit_memory import fit_memory
from .graph import Canonicalise, LowerPrecision, Pass, canonical_passes, find_repeated_layers, run_passes
from .inspection import (
    show_algorithms,
    show_blocks,
    show_launches,
    show_partition,
    show_programs,
    show_schedules,
    show_sources,
    show_threads,
    show_updates,
    show_views,
    verify_algorithms,
    verify_blocks,
    verify_nothing,
    verify_order,
    verify_partition,
    verify_refined,
    verify_schedules,
    verify_statements,
    verify_threads,
)
from .make_kernels import emit_sources, extract_threads, lower_blocks, select_kernels
from .partitioning import (
    choose_schedules,
    form_groups,
    fuse_horizontally,
    insert_layers,
    plan_algorithms,
    refine_partition,
    split_long_reductions,
    update_inputs,
)
from .place_tensors import order_dims, pack, place_tensors
from .results import LaunchKernels, Partition
from .rewrites import REWRITES, write_statements
from .stage import Stage, graph_stage, rewrite_stage

_LOG = logging.getLogger("cuts.passes")
#: Stages after the graph passes, in order. From `schedule` on each distinct kernel is made once. Of a graph with
#: repeated layers, those of groups see a shorter one.
GROUP_STAGES: tuple[Stage[Any, Any], ...] = (
    Stage("algorithms", plan_algorithms, show_algorithms, verify_algorithms,
          "nodes -> the cheapest algorithm that their declarations list (Winograd, Fourier tiles, fast Fourier "
          "transforms, space to depth), by "
          "the cost of its fusion groups: measured times, or on a GPU the cost model, where the gain exceeds its "
          "error; filters are transformed by the compiler; workers partition the alternatives",
          ("partitioning/choose_algorithms.py", "costs/candidate_subgraphs.py", "partitioning/baseline_plan.py")),
    Stage("memory", fit_memory, show_algorithms, verify_algorithms,
          "stored values -> rematerialised before their later readers, cheapest first, until the live values fit; only "
          "where the memory is limited", ("graph/rematerialise.py",)),
    Stage("programs", write_statements, show_programs, verify_statements,
          "graph -> statements over graph values, cut into kernel units; scatters become atomic operations that "
          "commute, recurrences loops over slices, strided sums an axis or a statement for each residue, running sums "
          "prefix scans, ranks sorts of rows, lookups at evenly stepping indices slices",
          ("fusion/programs.py", "fusion/cut_units.py", "fusion/recurrences.py",
           "statements/scatters/deterministic_scatter.py", "statements/stride_residues.py",
           "statements/prefix_scan.py", "statements/sorts.py", "statements/gather_to_slice.py")),
    *map(rewrite_stage, REWRITES),
    Stage("layouts", order_dims, show_programs, verify_statements,
          "tensors between kernels -> stored with the dims innermost that make accesses wide: channels for matrix "
          "instructions, images elsewhere; constant operands of matrix instructions likewise",
          ("layout/choose_layouts.py", "layout/dim_runs.py", "fusion/reorder.py")),
    Stage("pack", pack, show_programs, verify_statements,
          "constants -> constants stored in the order in which threads read them",
          ("layout/pack.py", "layout/constants.py")),
    Stage("views", place_tensors, show_views, verify_nothing,
          "data movement -> `Storage` (buffer, offset, strides) where that costs no kernel", ("fusion/views.py",)),
    Stage("partition", form_groups, show_partition, verify_partition,
          "units -> fusion groups in normal form: Algorithm 1 of DeepCuts on graphs with branches; `Evaluate` is an "
          "interface",
          ("fusion/grouping/partition.py", "fusion/grouping/partitioner.py", "fusion/grouping/sibling_fusion.py",
           "fusion/grouping/convex_merge.py",
           "fusion/grouping/group_builder.py",
           "fusion/legality.py", "fusion/normalise.py", "costs/evaluators.py", "costs/analytic_cost.py",
           "costs/async_cost.py")),
    Stage("split", split_long_reductions, show_partition, verify_partition,
          "groups with few results and long reductions -> split-K, two kernels that add partial sums in fixed order, "
          "unmeasured where the cost model expects to save a fifth of the time; chains with few rows -> parts of their "
          "columns and the combination of their states; large contractions of unaligned "
          "halves -> aligned copies of their factors first, of f32 -> transposed ones",
          ("split/split_reduction.py", "split/part_counts.py", "split/split_chain.py", "split/align_operands.py",
           "split/splitting.py")),
)  # fmt: skip
LAUNCH_STAGES: tuple[Stage[Any, Any], ...] = (
    Stage("schedule", choose_schedules, show_schedules, verify_schedules,
          "group -> the best candidate schedule of its space, with its lower bound",
          ("schedule/space.py", "schedule/schedule_parameters.py", "schedule/selection/enumerate.py",
           "model/lower_bound.py", "schedule/selection/hill_climbing.py", "schedule/selection/choose.py")),
    Stage("reconsider", refine_partition, show_schedules, verify_refined,
          "groups with their times -> groups split again that take longer than their parts; only where times are "
          "measured", ("partitioning/refine_partition.py",)),
    Stage("launches", fuse_horizontally, show_launches, verify_order,
          "groups -> launches: horizontal fusion of independent groups, where that is faster",
          ("partitioning/horizontal_fusion.py", "costs/launch_schedules.py", "launch_order.py")),
    Stage("updates", update_inputs, show_updates, verify_order,
          "outputs that replace inputs -> written in the inputs' memory, where no kernel reads an element after it is "
          "overwritten; slices of them by a kernel over the updates",
          ("partitioning/update_inputs.py", "fusion/grouping/slice_updates.py")),
    Stage("lower", lower_blocks, show_blocks, verify_blocks, "group + schedule -> block-level kernel",
          ("lowering/lower.py",)),
    Stage("extract", extract_threads, show_threads, verify_threads,
          "block-level kernel -> thread-level kernel; overlapping loads of neighbouring outputs become one window, "
          "aligned neighbours one vector; divisions by one number share its reciprocal",
          ("lowering/extract.py", "lowering/threads/reciprocal_division.py", "lowering/threads/windows.py",
           "lowering/threads/vectorise.py", "lowering/threads/interleaved_copies.py")),
    Stage("select", select_kernels, show_threads, verify_threads,
          "thread-level kernel -> the same over instructions of a dialect: vector accesses, loads of fragments, "
          "asynchronous copies",
          ("instructions/select.py", "instructions/vector_accesses.py", "instructions/matrix_loads.py")),
    Stage("emit", emit_sources, show_sources, verify_nothing,
          "thread-level kernel -> source and launch", ("backends/source/emit.py",)),
)  # fmt: skip
STAGES = (*GROUP_STAGES, *LAUNCH_STAGES)


def graph_passes(registry: Registry, precision: PrecisionName = "fp32") -> tuple[Pass, ...]:
    """Return the graph passes in order.

    One round of each comes first, then all of them to a fixed point, and last the precision policy: constants are
    folded in f32, and rounded once.
    """
    instances = registry.instances
    return (
        *canonical_passes(instances),
        Canonicalise(instances),
        LowerPrecision(instances, PRECISIONS[precision]),
    )


def all_stages(registry: Registry, precision: PrecisionName = "fp32") -> tuple[Stage[Any, Any], ...]:
    """Return every stage in order, the graph passes first."""
    return (*map(graph_stage, graph_passes(registry, precision)), *STAGES)


def compile_graph(
    graph: Graph,
    registry: Registry,
    target: Target,
    options: CompileOptions,
    emit: Emit,
    executor: Executor | None = None,
) -> CompiledGraph:
    """Compile a graph for a target without measurements.

    A stopped compilation has no kernels. `emit` is the printer that a backend provides; an `executor` evaluates the
    cost model for many kernels at once.

    Raises `UsageError` where the options name an unknown stage, `PassError` where a stage fails or its result is
    invalid.
    """
    context = CompileContext(registry, target, options, emit, executor or LocalExecutor())
    kernels = run_stages(graph, context)
    return CompiledGraph(graph, (), ()) if kernels is None else assemble_kernels(kernels, context)


def run_stages(graph: Graph, context: CompileContext) -> LaunchKernels | None:
    """Return the kernels of a graph, None where the options stop."""
    options = context.options
    _check_names([stage.name for stage in all_stages(context.registry, options.precision)], options)
    *_, (_, result) = stage_results(graph, context)
    return None if options.stop_after else result


def stage_results(graph: Graph, context: CompileContext) -> Iterator[tuple[str, Any]]:
    """Yield the name and the result of each stage, in order.

    The last one is that after which the options stop.
    """
    options, found = context.options, _short_groups(graph, context)
    stages = all_stages(context.registry, options.precision) if found is None else LAUNCH_STAGES
    result: Any = graph if found is None else found
    for stage in stages:
        result = stage.perform(result, context)
        yield stage.name, result
        if options.stops_after(stage.name):
            return


def _short_groups(graph: Graph, context: CompileContext) -> Partition | None:
    """Return the groups of a graph with repeated layers, by those of a shorter one.

    None where there are none, where groups of layers differ, or where all of the graph is shown, counts or is recorded.
    """
    options = context.options
    if options.shows or options.memory is not None or context.record is not None:
        return None
    layers = find_repeated_layers(graph)
    short = None if layers is None else layers.shorten()
    if layers is None or short is None:
        return None
    passes = graph_passes(context.registry, options.precision)
    result: Any = _short_groups(short, context)
    if result is None:
        result = short
        for stage in (*map(graph_stage, passes), *GROUP_STAGES):
            result = stage.perform(result, context)
    considered = run_passes(graph, passes) if context.costs.times.expected else graph  # it is recorded
    found = insert_layers(layers, considered, result, context)
    if found is not None and options.verifies_stages:
        verify_partition(found, context)
    if found is None:
        _LOG.info("graph %s: groups of %d equal layers differ", quote(graph.name), layers.count)
    return found


def _check_names(known: Sequence[str], options: CompileOptions) -> None:
    wanted = [n for n in (*options.print_after, options.stop_after) if n and n != "all"]
    unknown = [n for n in wanted if n not in known]
    if unknown:
        raise UsageError(f"unknown pass '{unknown[0]}'", hint=f"passes in order: {', '.join(known)}")
