"""Optimisers: their declared operations and their state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from attrs import field, frozen


@frozen
class SGD:
    """Gradient descent, with velocity where `momentum` is not 0.

    Equal to PyTorch's.
    """

    rate: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    @property
    def op(self) -> str:
        """The operation that makes one step."""
        return "sgd_momentum" if self.momentum else "sgd"

    @property
    def state(self) -> tuple[str, ...]:
        """State of each parameter, in order of the operation's operands.

        Results have the same order.
        """
        return ("velocity",) if self.momentum else ()

    @property
    def counts(self) -> bool:
        """Return whether the operation takes the number of the step."""
        return False

    @property
    def attributes(self) -> Mapping[str, float | bool]:
        """The operation's attributes."""
        own = {"momentum": self.momentum, "nesterov": self.nesterov} if self.momentum else {}
        return {"weight_decay": self.weight_decay, **own}


@frozen
class Adam:
    """Adam, or AdamW with `decoupled` weight decay; equal to PyTorch's."""

    rate: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    op: str = field(default="adam", init=False)
    state: tuple[str, ...] = field(default=("mean", "square"), init=False)
    counts: bool = field(default=True, init=False)

    @property
    def attributes(self) -> Mapping[str, float | bool]:
        """The operation's attributes."""
        return {
            "beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon,
            "weight_decay": self.weight_decay, "decoupled": self.decoupled,
        }  # fmt: skip


Optimiser: TypeAlias = SGD | Adam
