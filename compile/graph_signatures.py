"""Cache of graph signatures by fingerprint.

Caches, per fingerprint of a captured FX graph, its signature (inputs and outputs) and the key of its compiled plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from ..ir import DType, TensorType
from ..store import EntryStore, Key

if TYPE_CHECKING:
    from ..frontends.torch import CachedGraph, Choice, GraphSignature


@frozen
class CachedSignature:
    """Signature, constant and updated inputs, and plan key of a captured graph."""

    ends: GraphSignature
    frozen: tuple[int, ...]
    plan: str
    updated: tuple[int, ...] = ()

    def with_program(self, compiled: Choice) -> CachedGraph:
        """Return the signature with the program that runs the plan."""
        from ..frontends.torch import CachedGraph

        return CachedGraph(self.ends, self.frozen, compiled, self.updated)


def find_signature(key: Key) -> CachedSignature | None:
    """Return the cached signature of a graph."""
    entry = EntryStore.open().get(key)
    if entry is None:
        return None
    record = json.loads(entry["signature"])
    updated = tuple(record.get("updated", ()))
    return CachedSignature(signature_of_record(record), tuple(record["frozen"]), record["plan"], updated)


def save_signature(key: Key, found: CachedGraph, plan: str) -> None:
    """Cache a graph's signature and the name of its plan."""
    record = {**signature_record(found.ends), "frozen": found.frozen, "updated": found.updated, "plan": plan}
    EntryStore.open().put(key, {"signature": json.dumps(record).encode()})


def signature_record(ends: GraphSignature) -> dict[str, Any]:
    """Return a signature as JSON has it."""
    return {
        "inputs": ends.inputs,
        "results": ends.results,
        "seeds": ends.seeds,
        "orders": dict(ends.orders),
        "types": {name: (type_.dtype.value, type_.shape) for name, type_ in ends.types.items()},
        "memory": ends.memory.record(),
        "updates": dict(ends.updates),
    }


def signature_of_record(record: Mapping[str, Any]) -> GraphSignature:
    """Return the signature of a JSON record."""
    from ..frontends.torch import GraphSignature, ResultMemory

    return GraphSignature(
        tuple(record["inputs"]),
        tuple(record["results"]),
        tuple(record["seeds"]),
        {name: tuple(order) for name, order in record["orders"].items()},
        {name: TensorType(DType(dtype), tuple(shape)) for name, (dtype, shape) in record["types"].items()},
        ResultMemory.of_record(record["memory"]),
        record.get("updates", {}),
    )
