"""Results of stages: each is frozen, and holds the result before it.

    Graph -> Algorithms -> Statements -> Layouts -> Partition -> ScheduledPartition -> Launches -> LaunchKernels

Results are compared by identity, so each can be the key of a cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from attrs import field, frozen

from ..ir import Graph, Kernel, KernelFunction
from .decisions import Replay
from .fusion import Group, GroupBuilder, Programs, Views, form_key
from .schedule import Candidate


def kernel_key(group: Group, views: Views) -> Hashable:
    """Return a group's kernel key: its normal form and its tensors' storage."""
    return form_key(group.form), tuple(group.storages(views).items())


@frozen(eq=False)
class Algorithms:
    """Graph with the algorithms of its nodes.

    `considered` is the graph for whose nodes algorithms were chosen, `algorithms` maps the nodes of an algorithm to its
    name, `replaced` the nodes that an algorithm replaces. `baseline` is the best plan that the cost model made, where
    another one ships, `rematerialised` are values that are computed again.
    """

    graph: Graph
    considered: Graph
    algorithms: Mapping[str, str] = field(factory=dict)
    replaced: Mapping[str, str] = field(factory=dict)
    baseline: Algorithms | None = None
    rematerialised: frozenset[str] = frozenset()


@frozen(eq=False)
class Statements:
    """Statements of a graph.

    `on_chip` are the tensors between units that must not be stored, as memory is limited; `recomputed` are those that
    are computed again, so that they need no storage.
    """

    source: Algorithms
    programs: Programs
    on_chip: frozenset[str] = frozenset()
    recomputed: frozenset[str] = frozenset()


@frozen(eq=False)
class Layouts:
    """Storage of all tensors, and the builder of groups over them."""

    statements: Statements
    views: Views
    builder: GroupBuilder


@frozen(eq=False)
class Partition:
    """Fusion groups.

    `formed` are the groups before reductions are split, `groups` those after, `views` include the workspaces between
    them. `replay` is the replayed part of a decision record. `unique` has the first group of each distinct kernel.
    """

    layouts: Layouts
    formed: Sequence[Group]
    groups: Sequence[Group]
    views: Views
    replay: Replay | None = None
    unique: Mapping[Hashable, Group] = field(init=False)

    @unique.default
    def _distinct(self) -> Mapping[Hashable, Group]:
        found: dict[Hashable, Group] = {}
        for group in self.groups:
            found.setdefault(kernel_key(group, self.views), group)
        return found


@frozen(eq=False)
class ScheduledPartition:
    """Partition with the schedule of each distinct kernel."""

    partition: Partition
    chosen: Mapping[Hashable, Candidate]


@frozen(eq=False)
class Launches:
    """Groups in execution order, those of one launch together.

    `scheduled` has the schedules for shared launches, `places` the positions of the groups when they were formed,
    `candidates` the schedules with which each launch was found legal.
    """

    scheduled: ScheduledPartition
    launches: Sequence[tuple[Group, ...]]
    places: Sequence[tuple[int, ...]]
    candidates: Sequence[tuple[Candidate, ...]]


@frozen(eq=False)
class LaunchKernels:
    """Kernels of all launches, by the keys of their members.

    `built` are those of other processes; the others have a block-level and a thread-level kernel for each distinct
    group, and all have a function.
    """

    launches: Launches
    built: Mapping[tuple[Hashable, ...], KernelFunction]
    blocks: Mapping[Hashable, Kernel]
    threads: Mapping[Hashable, Kernel] = field(factory=dict)
    functions: Mapping[tuple[Hashable, ...], KernelFunction] = field(factory=dict)
