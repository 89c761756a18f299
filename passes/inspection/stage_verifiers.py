"""Stage verifiers: invariants of each stage's result."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir import Graph, VerifyError, quote, raise_all, verify_graph
from ..context import CompileContext
from ..results import Algorithms, Launches, LaunchKernels, Partition, ScheduledPartition, Statements, kernel_key
from .verify import verify_dfg, verify_groups, verify_kernel, verify_launches, verify_programs, verify_schedule


def verify_nothing(result: object, context: CompileContext) -> None:
    """Verify nothing: the stage's result has no invariants of its own."""


def verify_types(graph: Graph, context: CompileContext) -> None:
    """Verify the graph, and its types against the declarations."""
    verify_graph(graph, context.instances.infer)


def verify_algorithms(result: Algorithms, context: CompileContext) -> None:
    """Verify the graph with its algorithms."""
    verify_types(result.graph, context)


def verify_statements(result: Statements, context: CompileContext) -> None:
    """Verify the statements of all units."""
    verify_programs(result.programs)


def verify_partition(result: Partition, context: CompileContext) -> None:
    """Verify the groups, and that they can run in some order."""
    verify_groups(result.groups, result.views)


def verify_schedules(result: ScheduledPartition, context: CompileContext) -> None:
    """Verify each chosen schedule against its group and the machine."""
    for key, group in result.partition.unique.items():
        verify_schedule(group.form, result.chosen[key].schedule, context.target)


def verify_refined(result: ScheduledPartition, context: CompileContext) -> None:
    """Verify other groups than those before, and their schedules."""
    verify_partition(result.partition, context)
    verify_schedules(result, context)


def verify_order(result: Launches, context: CompileContext) -> None:
    """Verify the order of launches, and the schedules of shared ones."""
    verify_launches(result.launches, result.places, result.scheduled.partition.views)
    raise_all([*_schedule_violations(result)])


def _schedule_violations(result: Launches) -> Iterator[VerifyError]:
    """Yield members of shared launches that are lowered with a schedule other than the launch's."""
    chosen, views = result.scheduled.chosen, result.scheduled.partition.views
    for launch, candidates in zip(result.launches, result.candidates, strict=True):
        for group, candidate in zip(launch, candidates, strict=True) if len(launch) > 1 else ():
            if chosen[kernel_key(group, views)].schedule != candidate.schedule:
                units = ", ".join(map(quote, group.units))
                yield VerifyError(
                    f"units {units}: expected the schedule of their launch, found that of an equal kernel"
                )


def verify_blocks(result: LaunchKernels, context: CompileContext) -> None:
    """Verify each block-level kernel, races in shared memory included."""
    for kernel in result.blocks.values():
        verify_kernel(kernel)


def verify_threads(result: LaunchKernels, context: CompileContext) -> None:
    """Verify the data-flow graphs of each thread-level kernel."""
    for kernel in result.threads.values():
        verify_dfg(kernel)
