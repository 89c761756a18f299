"""Plans as functions and as values: called, pickled, copied."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..ir import TensorType, UsageError, quote


class PortablePlan(ABC):
    """Plan that is a function of arrays, and is pickled and copied.

    Copies are made through the files of its folder. A copy has the present state of the plan, and opens its device
    anew.
    """

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, TensorType]:
        """The types of the inputs."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name."""

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the plan's folder atomically."""

    @abstractmethod
    def reopen(self) -> Any:
        """Return the function that opens a folder; pickle must know it."""

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Run on arrays in the order of the inputs, or by name.

        Returns the result, or a tuple of several.

        Raises `UsageError` for more arrays than inputs, and for an input that is given twice.
        """
        names = tuple(self.inputs)
        if len(arrays) > len(names):
            wants = ", ".join(map(quote, names)) or "none"
            raise UsageError(f"expected {len(names)} inputs, found {len(arrays)}", hint=f"inputs are: {wants}")
        given = dict(zip(names, arrays, strict=False))
        if twice := sorted(given.keys() & named.keys()):
            raise UsageError(f"input {quote(twice[0])} is given twice", hint="by position or by name")
        found = tuple(self.run(given | named).values())
        return found[0] if len(found) == 1 else found

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the files of the plan's folder and its state."""
        from tempfile import TemporaryDirectory

        with TemporaryDirectory(prefix="cuts-") as place:
            folder = Path(place) / "plan"
            self.save(folder)
            paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        return _reopen_files, (self.reopen(), files, dict(getattr(self, "state", {})))


def _reopen_files(reopen: Any, files: Mapping[str, bytes], state: Mapping[str, Any]) -> PortablePlan:
    """Return a plan from the files of its folder."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="cuts-") as place:
        for name, content in files.items():
            path = Path(place) / "plan" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        plan: Any = reopen(Path(place) / "plan")
    if state:
        plan.set_state(state)
    found: PortablePlan = plan
    return found
