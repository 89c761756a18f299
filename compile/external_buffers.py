"""Plans as programs over external buffers, for PyTorch's entry points."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..backends import SequenceLauncher, find_target, open_sequence_launcher
from ..ir import Target
from ..runtime import ConstantImages, ExternalSession, Plan, Share, without_elements
from .loading import Spec
from .plan import CompiledPlan

if TYPE_CHECKING:
    from ..frontends.torch import ArrayFunction, CapturedGraph, TensorProgram


class InPlaceProgram:
    """Plan, and the device that it is to run on.

    Once it is open over shared memory, the device has the only copy of its large constants: `share` must find them
    where it is opened again.
    """

    def __init__(self, plan: Plan, chains: SequenceLauncher) -> None:
        self.images = ConstantImages.of_plan(plan)
        self.plan = without_elements(plan)
        self.chains = chains

    def open(
        self,
        held: Collection[str],
        allocate: Callable[[int], int],
        share: Share | None = None,
        divide: bool = False,
    ) -> ExternalSession:
        """Open the plan in external memory.

        `allocate` and `share` provide it; `held` are inputs that seldom move. With `divide`, the caller releases inputs
        between parts of the launches.
        """
        session = ExternalSession(self.plan, self.chains, held, allocate, share, self.images, divide)
        if share is not None:
            self.images.release()
        return session


@frozen(eq=False)
class SingleProgram:
    """Choice of a single program."""

    program: TensorProgram | ArrayFunction

    def choose(self) -> TensorProgram | ArrayFunction:
        """Return the program."""
        return self.program


def program_of(made: CompiledPlan, ordinal: int) -> TensorProgram | ArrayFunction:
    """Return a plan as a program on the device with a number.

    It is a function of arrays where the device has memory that PyTorch does not manage.
    """
    chains = open_sequence_launcher(made.target, ordinal)
    return made.run if chains is None else InPlaceProgram(made.plan, chains)


def target_of(device: Any) -> tuple[Target, int]:
    """Return the target for a PyTorch device, and the device number."""
    return find_target("cuda" if device.type == "cuda" else "opencl"), device.index or 0


def spec_of(captured: CapturedGraph) -> Spec:
    """Return the vocabulary of a captured graph."""
    return Spec(captured.registry, captured.texts)
