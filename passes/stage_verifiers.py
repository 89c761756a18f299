"""Stage verifiers: invariants of each stage's result."""

from __future__ import annotations

from ..ir import verify_graph
from .compilation import Compilation
from .verify import verify_dfg, verify_groups, verify_kernel, verify_launches, verify_programs, verify_schedule


def verify_nothing(work: Compilation) -> None:
    """Verify nothing: the stage's result has no invariants of its own."""


def verify_types(work: Compilation) -> None:
    """Verify the graph, and its types against the declarations."""
    if work.is_new(work.graph):
        verify_graph(work.graph, work.instances.infer)


def verify_statements(work: Compilation) -> None:
    """Verify the statements of all units."""
    if work.is_new(work.programs):
        verify_programs(work.programs)


def verify_partition(work: Compilation) -> None:
    """Verify the groups, and that they can run in some order."""
    if work.is_new(work.views, *work.groups):
        verify_groups(work.groups, work.views, work.is_new)


def verify_order(work: Compilation) -> None:
    """Verify the groups, and the order of launches."""
    verify_partition(work)
    if work.is_new(work.views, *work.groups, *work.launches):
        verify_launches(work.launches, work.places, work.views)


def verify_schedules(work: Compilation) -> None:
    """Verify each chosen schedule against its group and the machine."""
    for key, group in work.unique.items():
        if work.is_new(group.form, work.chosen[key]):
            verify_schedule(group.form, work.chosen[key].schedule, work.target)


def verify_blocks(work: Compilation) -> None:
    """Verify each block-level kernel, races in shared memory included."""
    for kernel in work.blocks.values():
        verify_kernel(kernel)


def verify_threads(work: Compilation) -> None:
    """Verify the data-flow graphs of each thread-level kernel."""
    for kernel in work.threads.values():
        verify_dfg(kernel)
