"""Plans of models in stages: compiled parts and uncompiled operations."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...backends import Array
from ...ir import Graph, GraphError, Target, TensorType, quote
from ...numerics import Comparison, compare
from ...runtime import random_inputs
from ..plan import CompiledPlan
from ..portable_plan import PortablePlan

#: Makes the plan of a part.
Compile = Callable[[Graph], CompiledPlan]


class StagedPlan(PortablePlan):
    """Model in stages: plans of its parts, and uncompiled operations between them.

    `notice` gets the warning that names these.
    """

    def __init__(self, name: str, target: Target) -> None:
        self.name = name
        self.target = target
        self.notice: Callable[[str], None] = lambda text: warnings.warn(text, self.category, stacklevel=4)
        self._noticed = ""

    def __repr__(self) -> str:
        """Return inputs, uncompiled operations, and the target."""
        given = ", ".join(f"{name}: {type_}" for name, type_ in self.inputs.items()) or "..."
        return f"StagedPlan({self.name!r}: ({given}), {', '.join(self.foreign)} uncompiled, for {self.target.name})"

    @property
    @abstractmethod
    def foreign(self) -> dict[str, list[str]]:
        """The operations that run uncompiled, with the names of their nodes."""

    @property
    @abstractmethod
    def warning(self) -> str:
        """Sentence that names the uncompiled operations, empty without any."""

    @property
    @abstractmethod
    def category(self) -> type[Warning]:
        """Class of that warning."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs that the plan was made for."""

    @property
    @abstractmethod
    def parts(self) -> tuple[CompiledPlan, ...]:
        """Plans of the parts compiled so far, in order."""

    @property
    @abstractmethod
    def foreign_time(self) -> float | None:
        """Share of the time in uncompiled operations, None before it is measured."""

    @abstractmethod
    def trace(self, inputs: Mapping[str, Array]) -> None:
        """Compile all parts for the shapes of a run with these inputs."""

    @abstractmethod
    def part_inputs(self, inputs: Mapping[str, Any]) -> Iterator[tuple[CompiledPlan, Mapping[str, Any]]]:
        """Run, and yield the plan of every part with its inputs."""

    @property
    def complete(self) -> bool:
        """Return whether every search finished within its budget."""
        return all(part.complete for part in self.parts)

    def warn(self) -> None:
        """Report the uncompiled operations to `notice`, once."""
        text = self.warning
        if text and text != self._noticed:
            self._noticed = text
            self.notice(text)

    def random_inputs(self, seed: int = 0) -> dict[str, Array]:
        """Return random inputs of the right types."""
        return random_inputs(self.inputs, tuple(self.inputs), seed)

    def verify(
        self, inputs: Mapping[str, Any] | None = None, oracle: Mapping[str, Any] | None = None
    ) -> tuple[Comparison, ...]:
        """Run and compare every part with the float64 reference.

        Each part is evaluated on the operands that it got. With an oracle's values, the outputs are compared with these
        instead.

        A foreign operation has no reference but itself, and may turn a rounding into another result; so parts are
        compared one by one.

        Raises `GraphError` where the oracle lacks an output.
        """
        given = self.random_inputs() if inputs is None else inputs
        if oracle is None:
            return tuple(result for part, arrays in self.part_inputs(given) for result in part.verify(arrays))
        found = self.outputs_of(given)
        missing = [name for name in found if name not in oracle]
        if missing:
            raise GraphError(
                f"the oracle has no output {quote(missing[0])}", hint=f"it has: {', '.join(map(quote, oracle))}"
            )
        return tuple(compare(name, value, oracle[name], 2 * self.tolerance()) for name, value in found.items())

    @abstractmethod
    def outputs_of(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the outputs that are arrays; the state stays."""

    def tolerance(self) -> float:
        """Return the relative rounding error, with foreign operations as identities."""
        return sum(max(part.tolerances().values(), default=0.0) for part in self.parts)
