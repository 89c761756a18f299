"""Kernels of tuning tasks and of shared launches, by this version.

A measurement is tied to the digest of the measured text and is valid as long as the same text is printed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from ...backends.source import emit
from ...ir import CutsError, FusedGroup, HorizontalKernel, KernelFunction, Schedule, Storage, use_former_keywords
from ...passes.instructions import select_instructions
from ...passes.lowering import extract, lower
from ...passes.schedule import check_schedule
from ...store import digest
from .tuning_task import TuningTask, measurement_key, read_schedule, schedule_text

#: Group that shares a launch with others: its normal form, its schedule, and the layout of its tensors.
BundleMember: TypeAlias = tuple[FusedGroup, Schedule, Mapping[str, Storage]]


def make_bundle(problem: TuningTask, members: Sequence[BundleMember]) -> KernelFunction:
    """Return the kernel of groups that share a launch."""
    dialect = problem.target.dialect
    threads = (extract(lower(form, schedule, storages, problem.target)) for form, schedule, storages in members)
    kernel = emit(HorizontalKernel(tuple(select_instructions(k, dialect) for k in threads)), dialect, {})
    return kernel.with_label(problem.form.operations)


def make_kernel(problem: TuningTask, schedule: Schedule) -> KernelFunction:
    """Return the kernel of a task by a schedule."""
    dialect = problem.target.dialect
    kernel = extract(lower(problem.form, schedule, problem.storages, problem.target))
    return emit(select_instructions(kernel, dialect), dialect, {}).with_label(problem.form.operations)


def launch_name(problem: TuningTask, members: Sequence[BundleMember]) -> str:
    """Return the database key of a launch of groups."""
    schedules = "".join(schedule_text(schedule) for _, schedule, _ in members)
    return f"together {problem.key} {digest(use_former_keywords(schedules))}"


@frozen
class KernelSpec:
    """Kernel to time: a task with a schedule, or a launch's `members`."""

    problem: TuningTask
    schedule: str = ""
    members: tuple[BundleMember, ...] = ()

    @property
    def name(self) -> str:
        """Key in the database."""
        return (
            launch_name(self.problem, self.members)
            if self.members
            else measurement_key(self.problem.key, self.schedule)
        )

    def kernel(self) -> KernelFunction | None:
        """Return the kernel that this version prints; None for an unknown schedule."""
        try:
            if self.members:
                return make_bundle(self.problem, self.members)
            schedule = read_schedule(self.schedule)
            legal = not check_schedule(self.problem.form, schedule, self.problem.target)
            return make_kernel(self.problem, schedule) if legal else None
        except (CutsError, AssertionError):
            return None  # no schedule of this version
