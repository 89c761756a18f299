"""Graphs with frozen parameters, and detection of their changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch
from attrs import frozen

from ....ir import UsageError
from ..settings import same_pointers

#: Compiles a graph with some inputs, by number, as constants.
CompileFrozen = Callable[[Mapping[int, torch.Tensor]], Callable[..., list[Any]]]


class FrozenWarning(UserWarning):
    """Warns that a frozen parameter changed and the graph is recompiled."""


def check_frozen(frozen: Mapping[int, Any]) -> None:
    """Raise `UsageError` where gradients of frozen parameters are wanted."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in frozen.values()):
        raise UsageError(
            "option 'freeze': gradients of the parameters are wanted",
            hint="call the model under torch.no_grad(), or leave 'freeze' out to train it",
        )


@frozen(eq=False)
class _State:
    """Function with its frozen tensors, their addresses and versions.

    An alias keeps each tensor's memory, so that no other tensor gets the address.
    """

    function: Callable[..., list[Any]]
    tensors: tuple[torch.Tensor, ...]
    aliases: tuple[torch.Tensor, ...]
    pointers: list[int]
    versions: list[int]
    indices: list[int]

    def holds(self, given: Sequence[torch.Tensor]) -> bool:
        """Return whether these are the same tensors with the same elements."""
        same = all(a is b for a, b in zip(given, self.tensors, strict=True))
        unwritten = same and [t._version for t in given] == self.versions
        return unwritten and same_pointers(given, self.pointers, self.indices)


class FrozenFunction:
    """Function of tensors with frozen ones among them; thread-safe.

    Changes are detected while the device is busy with the result, which is discarded where they occurred; the graph is
    then compiled with the new elements. A graph that `updates` its inputs cannot run twice: they are detected first.
    Writes that bypass PyTorch's version counter (`parameter.data`) cannot be detected.
    """

    def __init__(
        self, compile_frozen: CompileFrozen, examples: Mapping[int, torch.Tensor], updates: bool = False
    ) -> None:
        self.numbers, self._updates = tuple(examples), updates
        self._compile = compile_frozen
        self._changing = Lock()
        self._state = self._compile_state(tuple(examples.values()))

    def __call__(self, *arguments: Any) -> list[Any]:
        """Return the results for the current elements of the parameters."""
        state = self._state
        given = tuple(arguments[n] for n in self.numbers)
        while self._updates and not state.holds(given):
            state = self._refresh(given)
        found = state.function(*arguments)
        while not (self._updates or state.holds(given)):
            state = self._refresh(given)
            found = state.function(*arguments)
        return found

    def _refresh(self, given: tuple[torch.Tensor, ...]) -> _State:
        with self._changing:
            if not self._state.holds(given):
                warnings.warn(
                    "parameters changed after they had become constants: the graph is compiled again",
                    FrozenWarning,
                    stacklevel=4,
                )
                self._state = self._compile_state(given)
            return self._state

    def _compile_state(self, given: tuple[torch.Tensor, ...]) -> _State:
        if any(t.is_inference() for t in given):
            raise UsageError(
                "option 'freeze': parameters made under torch.inference_mode have no count of changes",
                hint="make the model outside of it, or leave 'freeze' out",
            )
        aliases = tuple(t.detach() for t in given)
        pointers, versions = [t.data_ptr() for t in given], [t._version for t in given]
        function = self._compile(dict(zip(self.numbers, aliases, strict=True)))
        return _State(function, given, aliases, pointers, versions, list(range(len(given))))
