"""What the pipeline asks of others: of whoever can measure, which schedule of each distinct kernel is fastest and what
groups cost; where nobody does, of whoever plans many kernels at once, what the model says of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from attrs import frozen

from ..ir import WHOLE, Budget, FusedGroup, KernelFunction, Schedule, Storage, Target
from .decisions import Decisions
from .fragments import Fragment, Priced, cut_fragments
from .fusion import GroupEvaluator
from .launch_schedules import Alike
from .pricing import Prices, Pricing
from .schedule import Candidate


@frozen(eq=False)
class Workload:
    """A distinct kernel: its normal form, where its tensors live, the nodes of one group that it computes, and how
    often it is launched.
    """

    form: FusedGroup
    storages: Mapping[str, Storage]
    nodes: tuple[str, ...]
    uses: int = 1


#: A group that shares a launch: its normal form, where its tensors live, and its schedule.
Member: TypeAlias = tuple[FusedGroup, Mapping[str, Storage], Candidate]
#: Groups by what is asked about them, the most urgent question first.
Questions: TypeAlias = Sequence[Sequence[FusedGroup]]
#: Says what kernels a plan has by what is known when it is asked.
Kernels: TypeAlias = Callable[[], Sequence[FusedGroup]]


class Planning(Protocol):
    """Does what the model alone decides, for many kernels at once."""

    def cut(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each fragment."""
        ...

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Return the best point of each group by the model, nothing for those that are left to the caller."""
        ...

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of each row as one of several in a launch, nothing for rows that are left to who asks."""
        ...


class PlanningHere:
    """Plans in this process."""

    def cut(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of each fragment, one after the other."""
        return cut_fragments(fragments)

    def choose(self, forms: Sequence[FusedGroup], target: Target) -> Sequence[Candidate | None]:
        """Leave all to the caller."""
        return [None] * len(forms)

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Leave all to who asks."""
        return [None] * len(rows)


class Selector(Protocol):
    """Chooses by measurement. The pipeline knows only this; a search that owns a device implements it."""

    @property
    def budget(self) -> Budget:
        """The time that the compilation may take."""
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing was cut short by a time budget or an interrupt."""
        ...

    @property
    def scale(self) -> float:
        """What seconds of the model are multiplied by, so that they can be compared with measured ones."""
        ...

    @property
    def decisions(self) -> Decisions | None:
        """What measuring is known to decide about the graph, so that nothing is weighed again."""
        ...

    def note(self, decisions: Decisions, apart: float) -> None:
        """Take in what was decided, and the seconds of all units by themselves."""
        ...

    def evaluator(self, modelled: GroupEvaluator) -> GroupEvaluator:
        """Return what groups cost: measured times where they are known, else what the model says."""
        ...

    def plan(self, fragments: Sequence[Fragment]) -> Sequence[Priced]:
        """Return the kernels of small graphs, cut by the model."""
        ...

    def plan_ahead(self, fragments: Sequence[Fragment]) -> Callable[[], Sequence[Priced]]:
        """Have small graphs cut by the model, and return what waits for their kernels."""
        ...

    def ahead(self, workloads: Sequence[Workload]) -> None:
        """Have the kernels of a plan that may ship made ready, beside what else there is to do."""
        ...

    def go_on(self, groups: Sequence[FusedGroup]) -> None:
        """Have searches for kernels that a plan will have gone on with, beside what else there is to do."""
        ...

    def overdue(self) -> bool:
        """Whether the budget is; asked often, so that what was made beside is taken in."""
        ...

    def foreseen(self, kernels: int, seconds: float) -> AbstractContextManager[None]:
        """Keep back in a block what a plan of so many kernels will take, whose groups are found in so many seconds."""
        ...

    def price(self, pricings: Sequence[Pricing]) -> Callable[[], Sequence[Prices | None]]:
        """Have groups priced by the model, and return what waits for it; none where there was no time for one."""
        ...

    def learn(self, questions: Questions, share: float, plan: Kernels | None = None) -> bool:
        """Measure groups that the evaluator was asked for, as long as less than a `share` of the budget is used up;
        true if costs changed, so that the partition must be found again. Groups that the decisions so far rest on go
        first, those of one question after the other. While the last ones are built, those kernels may be gone on with
        that a `plan` has by what is known by then.
        """
        ...

    def tell(self, group: FusedGroup, seconds: float) -> None:
        """Take in what a group was measured to take as it was chosen."""
        ...

    def knows(self, group: FusedGroup) -> bool:
        """Whether a group was measured."""
        ...

    @property
    def together(self) -> bool:
        """Whether groups may share a launch."""
        ...

    def schedule_alike(self, rows: Sequence[Alike]) -> Sequence[Sequence[Candidate] | None]:
        """Return the kernels of each row as one of several in a launch, nothing for rows that are left to who asks."""
        ...

    def faster_together(self, launches: Sequence[Sequence[Member]]) -> Sequence[bool]:
        """Return for each launch of some groups whether it was measured to be faster than one launch for each."""
        ...

    def make(
        self, chosen: Mapping[Hashable, Schedule], launches: Mapping[Hashable, Sequence[Member]]
    ) -> tuple[Mapping[Hashable, KernelFunction], Mapping[Hashable, KernelFunction]]:
        """Return the kernels that were made of some that were chosen, and those of launches of several groups, by
        others than this process: as many as there was time for.
        """
        ...

    def choose(self, workloads: Mapping[Hashable, Workload], share: float = WHOLE) -> Mapping[Hashable, Candidate]:
        """Return the schedule of each kernel, found before a share of the budget is used up."""
        ...
