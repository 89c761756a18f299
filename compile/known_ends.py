"""Graph-signature cache.

Caches, per fingerprint of a captured FX graph, its signature (inputs and outputs) and the key of its compiled plan.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..backends import KernelStore, cache_key
from ..ir import DType, TensorType

if TYPE_CHECKING:
    from ..frontends.torch import Choice, Ends, Found


@frozen
class KnownEnds:
    """Signature of a captured graph, inputs that became constants, and plan key."""

    ends: Ends
    frozen: tuple[int, ...]
    plan: str

    def found(self, compiled: Choice) -> Found:
        """Return the signature with the program that runs the plan."""
        from ..frontends.torch import Found

        return Found(self.ends, self.frozen, compiled)


def find_ends(facts: Iterable[str | bytes]) -> KnownEnds | None:
    """Return the cached signature for a graph's fingerprint facts."""
    text = KernelStore.open("door").get(cache_key(facts))
    return None if text is None else _read(json.loads(text))


def keep_ends(facts: Iterable[str | bytes], found: Found, plan: str) -> None:
    """Cache a graph's signature and the key of its plan."""
    KernelStore.open("door").put(cache_key(facts), json.dumps(_to_record(found, plan)).encode())


def _to_record(found: Found, plan: str) -> dict[str, Any]:
    ends = found.ends
    return {
        "inputs": ends.inputs,
        "results": ends.results,
        "seeds": ends.seeds,
        "orders": dict(ends.orders),
        "types": {name: (type_.dtype.value, type_.shape) for name, type_ in ends.types.items()},
        "memory": ends.memory.record(),
        "frozen": found.frozen,
        "plan": plan,
    }


def _read(record: dict[str, Any]) -> KnownEnds:
    from ..frontends.torch import Ends, ResultMemory

    ends = Ends(
        tuple(record["inputs"]),
        tuple(record["results"]),
        tuple(record["seeds"]),
        {name: tuple(order) for name, order in record["orders"].items()},
        {name: TensorType(DType(dtype), tuple(shape)) for name, (dtype, shape) in record["types"].items()},
        ResultMemory.of_record(record["memory"]),
    )
    return KnownEnds(ends, tuple(record["frozen"]), record["plan"])
