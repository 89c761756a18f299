"""Executor: other processes that evaluate the cost model and build kernels."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar

from attrs import frozen

from ...ir import BOUND_PRUNING, FusedGroup, KernelFunction, Pruning, Storage, Target
from ..schedule import Candidate

A = TypeVar("A")
#: Member of a launch: its normal form, the storage of its tensors, and its schedule.
Member: TypeAlias = tuple[FusedGroup, Mapping[str, Storage], Candidate]
#: Keys of the kernels of a launch's members.
Keys: TypeAlias = tuple[Hashable, ...]


class ModelQuery(Generic[A]):
    """Question to the cost model that any process may answer."""

    def answer_here(self) -> A | None:
        """Return this process's answer; None leaves it to the caller."""
        return None


@frozen
class ScheduleRequest(ModelQuery[Candidate]):
    """Question for a group's best modelled schedule."""

    form: FusedGroup
    target: Target
    pruning: Pruning = BOUND_PRUNING


@frozen(eq=False)
class Workload:
    """Distinct kernel to be tuned.

    It has a normal form, the storage of its tensors, the nodes of one of its groups, and its launches.
    """

    form: FusedGroup
    storages: Mapping[str, Storage]
    nodes: tuple[str, ...]
    uses: int = 1


class Executor(Protocol):
    """Other processes that work for a compilation until its deadline."""

    def submit(self, requests: Sequence[ModelQuery[A]]) -> Callable[[], Sequence[A | None]]:
        """Have questions of one kind answered; return a function that waits.

        An answer is None where it is left to the caller.
        """
        ...

    def prepare(self, kernels: Callable[[], Iterable[Workload]], further: bool = False) -> None:
        """Build the kernels of a likely plan, or `further` candidates, speculatively."""
        ...

    def build(self, launches: Mapping[Keys, Sequence[Member]]) -> Mapping[Keys, KernelFunction]:
        """Return the kernels of launches that other processes build."""
        ...

    def poll(self) -> None:
        """Receive results, so that other processes go on; called often."""
        ...

    def reserving_budget(self, kernels: int, seconds: float) -> AbstractContextManager[None]:
        """Context manager that reserves budget for a plan of `kernels` kernels.

        Its groups are found in `seconds`.
        """
        ...


class LocalExecutor:
    """Executor without other processes."""

    def submit(self, requests: Sequence[ModelQuery[A]]) -> Callable[[], Sequence[A | None]]:
        """Answer in this process."""
        return lambda: [request.answer_here() for request in requests]

    def prepare(self, kernels: Callable[[], Iterable[Workload]], further: bool = False) -> None:
        """Build nothing ahead."""

    def build(self, launches: Mapping[Keys, Sequence[Member]]) -> Mapping[Keys, KernelFunction]:
        """Leave all kernels to the pipeline."""
        return {}

    def poll(self) -> None:
        """Receive nothing."""

    @contextmanager
    def reserving_budget(self, kernels: int, seconds: float) -> Iterator[None]:
        """Reserve nothing: no other process needs time."""
        yield
