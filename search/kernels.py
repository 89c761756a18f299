"""Kernels as this version of the compiler writes them: of one problem by a schedule, or of groups that share a launch.

What was measured is tied to a digest of the text that was measured, and holds as long as the same is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from ..backends.source import emit
from ..ir import Bundle, CutsError, FusedGroup, KernelFunction, Schedule, Storage
from ..passes.lowering import extract, lower
from ..passes.schedule import check_schedule
from .problem import Problem, digest, read_schedule, schedule_text, trial_key

#: A group that shares a launch with others: its normal form, its schedule, and where its tensors live.
BundleMember: TypeAlias = tuple[FusedGroup, Schedule, Mapping[str, Storage]]


def make_bundle(problem: Problem, members: Sequence[BundleMember]) -> KernelFunction:
    """Return the kernel of groups that share a launch."""
    kernels = tuple(extract(lower(form, schedule, storages, problem.target)) for form, schedule, storages in members)
    return emit(Bundle(kernels), problem.target.dialect, {})


def make_kernel(problem: Problem, schedule: Schedule) -> KernelFunction:
    """Return the kernel of a schedule."""
    return emit(extract(lower(problem.form, schedule, problem.storages, problem.target)), problem.target.dialect, {})


def launch_name(problem: Problem, members: Sequence[BundleMember]) -> str:
    """Return the name of a launch of groups, which together compute a problem."""
    return f"together {problem.key} {digest(''.join(schedule_text(schedule) for _, schedule, _ in members))}"


@frozen
class Written:
    """What a time is of: a problem by the text of a schedule, or the `members` of a launch."""

    problem: Problem
    schedule: str = ""
    members: tuple[BundleMember, ...] = ()

    @property
    def name(self) -> str:
        """Under which the database knows what is written."""
        return launch_name(self.problem, self.members) if self.members else trial_key(self.problem.key, self.schedule)

    def kernel(self) -> KernelFunction | None:
        """Return the kernel that this version makes; none where it knows no such schedule."""
        try:
            if self.members:
                return make_bundle(self.problem, self.members)
            schedule = read_schedule(self.schedule)
            legal = not check_schedule(self.problem.form, schedule, self.problem.target)
            return make_kernel(self.problem, schedule) if legal else None
        except (CutsError, AssertionError):
            return None  # it is no schedule of this version
