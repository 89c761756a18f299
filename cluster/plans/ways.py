"""Ways (parallelisation strategies) of a model: one, or many as columns.

Columns are NumPy arrays that are scored together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import fields, frozen

from ...ir import UsageError

Column: TypeAlias = npt.NDArray[Any]

POLICIES = ("PR", "AR")
#: Resident values in GPU memory from step to step; each level includes those before it.
RESIDENT = ("nothing", "gradients", "weights", "state")
#: Treatment of the values that the backward pass needs.
ACTIVATIONS = ("keep", "offload", "recompute", "recompute+offload")


@frozen
class Way:
    """Parallelisation strategy.

    It has `dp` groups with different data, each of `p` stages of layers, each layer over `wp` GPUs. `policy` "PR"
    (parameter-resident) takes all micro-batches through a layer before the next layer, "AR" (activation-resident) a
    micro-batch through all layers before the next one. `micro` is a micro-batch in sequences. `resident` names the
    values that GPU memory holds throughout, `activations` the treatment of activations: kept in memory, offloaded to
    storage, or recomputed from each layer's input, which is kept or offloaded.
    """

    dp: int
    wp: int
    p: int
    policy: str
    micro: int
    resident: str = "nothing"
    activations: str = "keep"

    def __attrs_post_init__(self) -> None:
        for name, allowed in (("policy", POLICIES), ("resident", RESIDENT), ("activations", ACTIVATIONS)):
            if getattr(self, name) not in allowed:
                raise UsageError(f"{name}: expected one of {', '.join(allowed)}, found {getattr(self, name)!r}")
        for name in ("dp", "wp", "p", "micro"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise UsageError(f"{name}: expected a whole number above 0, found {getattr(self, name)!r}")

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.dp * self.wp * self.p

    @property
    def text(self) -> str:
        """One-line summary."""
        parts = (self.policy, f"micro {self.micro}", f"resident {self.resident}", f"activations {self.activations}")
        return f"DP {self.dp} WP {self.wp} P {self.p} " + ", ".join(parts)


@frozen(eq=False)
class Ways:
    """Many ways, a column for each choice.

    `level` and `activations` are indices of `RESIDENT` and `ACTIVATIONS`.
    """

    dp: Column
    wp: Column
    p: Column
    pr: Column
    micro: Column
    level: Column
    activations: Column

    def __len__(self) -> int:
        return len(self.dp)

    @property
    def recompute(self) -> Column:
        """Return whether the backward pass recomputes activations."""
        return self.activations >= 2

    @property
    def offload(self) -> Column:
        """Return whether kept activations are kept in storage."""
        found: Column = self.activations % 2 == 1
        return found

    def way(self, row: int) -> Way:
        """Return one row as an object."""
        policy = POLICIES[0 if self.pr[row] else 1]
        choices = RESIDENT[self.level[row]], ACTIVATIONS[self.activations[row]]
        return Way(int(self.dp[row]), int(self.wp[row]), int(self.p[row]), policy, int(self.micro[row]), *choices)

    def rows(self, chosen: Column) -> Ways:
        """Return some of the rows, by an index array or a mask."""
        return Ways(*(getattr(self, each.name)[chosen] for each in fields(Ways)))


def columns(ways: Sequence[Way]) -> Ways:
    """Return ways as columns."""
    rows = [
        (w.dp, w.wp, w.p, w.policy == "PR", w.micro, RESIDENT.index(w.resident), ACTIVATIONS.index(w.activations))
        for w in ways
    ]
    dp, wp, p, pr, *rest = (np.array(column) for column in zip(*rows, strict=True))
    return Ways(dp, wp, p, pr, *rest)


def all_ways(gpus: int, batch: int, *, training: bool) -> Ways:
    """Return every way to use a number of GPUs.

    Ways vary in the factors of the number, both policies, micro-batches that halve, and all choices of residency.
    Without training no gradients or optimiser's values exist, and an activation is needed once: it is kept or
    offloaded.
    """
    levels = (0, 1, 2, 3) if training else (0, 2)
    kinds = (0, 1, 2, 3) if training else (0, 1)
    found = [
        (dp, wp, gpus // (dp * wp), pr, micro, level, kind)
        for dp, wp in _factors(gpus)
        for micro in _micros(batch, dp)
        for pr in (True, False)
        for level in levels
        if not (pr and level == 1)  # a layer's gradient leaves memory once, when all micro-batches have added to it
        for kind in kinds
        if training or pr or kind == 0  # a micro-batch that goes through all layers at once leaves no activations
    ]
    table = np.array(found, np.int64).reshape(-1, 7)
    return Ways(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool), table[:, 4], table[:, 5], table[:, 6])


def _factors(gpus: int) -> Iterator[tuple[int, int]]:
    divisors = [d for d in range(1, gpus + 1) if gpus % d == 0]
    return ((dp, wp) for dp in divisors for wp in divisors if gpus % (dp * wp) == 0)


def _micros(batch: int, dp: int) -> list[int]:
    """Return the micro-batches that divide a group's share of the mini-batch: powers of two, and the share where it is
    small.
    """
    share, rest = divmod(batch, dp)
    if rest:
        return [1]  # no micro-batch divides it: this one is rejected with its reason
    return [1 << k for k in range(9) if share % (1 << k) == 0]
