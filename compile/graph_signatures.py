"""Cache of graph signatures by fingerprint.

Caches, per fingerprint of a captured FX graph, its signature (inputs and outputs) and the key of its compiled plan.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..ir import DType, TensorType
from ..store import EntryStore, Key

if TYPE_CHECKING:
    from ..frontends.torch import CachedGraph, Choice, GraphSignature


@frozen
class CachedSignature:
    """Signature of a captured graph, inputs that became constants, and plan key."""

    ends: GraphSignature
    frozen: tuple[int, ...]
    plan: str

    def with_program(self, compiled: Choice) -> CachedGraph:
        """Return the signature with the program that runs the plan."""
        from ..frontends.torch import CachedGraph

        return CachedGraph(self.ends, self.frozen, compiled)


def find_signature(key: Key) -> CachedSignature | None:
    """Return the cached signature of a graph."""
    entry = EntryStore.open().get(key)
    return None if entry is None else _read(json.loads(entry["signature"]))


def save_signature(key: Key, found: CachedGraph, plan: str) -> None:
    """Cache a graph's signature and the name of its plan."""
    EntryStore.open().put(key, {"signature": json.dumps(_to_record(found, plan)).encode()})


def _to_record(found: CachedGraph, plan: str) -> dict[str, Any]:
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


def _read(record: dict[str, Any]) -> CachedSignature:
    from ..frontends.torch import GraphSignature, ResultMemory

    ends = GraphSignature(
        tuple(record["inputs"]),
        tuple(record["results"]),
        tuple(record["seeds"]),
        {name: tuple(order) for name, order in record["orders"].items()},
        {name: TensorType(DType(dtype), tuple(shape)) for name, (dtype, shape) in record["types"].items()},
        ResultMemory.of_record(record["memory"]),
    )
    return CachedSignature(ends, tuple(record["frozen"]), record["plan"])
