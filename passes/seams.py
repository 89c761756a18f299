"""What must hold behind each stage of the pipeline: the verifiers of what it made."""

from __future__ import annotations

from ..ir import verify_graph
from .compilation import Compilation
from .verify import verify_dfg, verify_groups, verify_kernel, verify_launches, verify_programs, verify_schedule


def verify_nothing(work: Compilation) -> None:
    """Hold nothing: what the stage makes has no invariants of its own."""


def verify_types(work: Compilation) -> None:
    """Hold the graph to the invariants of its level, its types to the declarations."""
    if work.is_new(work.graph):
        verify_graph(work.graph, work.instances.infer)


def verify_statements(work: Compilation) -> None:
    """Hold the statements of all units to the invariants of theirs."""
    if work.is_new(work.programs):
        verify_programs(work.programs)


def verify_partition(work: Compilation) -> None:
    """Hold the groups to the invariants of theirs, and to an order in which they can run."""
    if work.is_new(work.views, *work.groups):
        verify_groups(work.groups, work.views, work.is_new)


def verify_order(work: Compilation) -> None:
    """Hold launches to an order in which they can run, their groups to the invariants of theirs."""
    verify_partition(work)
    if work.is_new(work.views, *work.groups, *work.launches):
        verify_launches(work.launches, work.places, work.views)


def verify_schedules(work: Compilation) -> None:
    """Hold each chosen schedule to the rules of its group and of the machine."""
    for key, group in work.unique.items():
        if work.is_new(group.form, work.chosen[key]):
            verify_schedule(group.form, work.chosen[key].schedule, work.target)


def verify_blocks(work: Compilation) -> None:
    """Hold each block-level kernel to the invariants of its level, free of races in shared memory."""
    for kernel in work.blocks.values():
        verify_kernel(kernel)


def verify_threads(work: Compilation) -> None:
    """Hold what a thread of each kernel does to the invariants of its level."""
    for kernel in work.threads.values():
        verify_dfg(kernel)
