"""Check of results against traced types, strides, offsets and storages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ....ir import BackendError, quote
from ..calls import tensor_of, updated_inputs


def checked_results(
    graph: torch.fx.Graph, nodes: Sequence[Any], function: Callable[..., list[Any]]
) -> Callable[..., list[Any]]:
    """Return a function that checks its results against a traced graph.

    Without `CUTS_VERIFY` it is the function itself.

    Calls of it raise `BackendError` for the first difference.
    """
    if os.environ.get("CUTS_VERIFY", "0") in ("", "0"):
        return function
    places = [tensor_of(node) for node in graph.nodes if node.op == "placeholder"]
    updated = dict(enumerate(updated_inputs(graph), len(nodes) - len(updated_inputs(graph))))
    traced = [tensor_of(node) if isinstance(node, torch.fx.Node) else None for node in nodes]

    def call(*arguments: Any) -> list[Any]:
        found = function(*arguments)
        in_place = {n for n, at in updated.items() if found[n] is arguments[at]}
        expected = [None if n in in_place else like for n, like in enumerate(traced)]
        for node, fault in zip(nodes, _faults(expected, found, places, arguments), strict=True):
            if fault:
                raise BackendError(
                    f"result {quote(str(node))} of a compiled graph: {fault}", hint="report this with the model"
                )
        return found

    return call


def _faults(
    traced: Sequence[torch.Tensor | None],
    found: Sequence[Any],
    places: Sequence[torch.Tensor | None],
    arguments: Sequence[Any],
) -> Iterator[str]:
    """Yield for each result the first difference from the traced tensor, or an empty text."""
    inputs = [
        (place, given)
        for place, given in zip(places, arguments, strict=True)
        if place is not None and given is not None
    ]
    traced = [None if tensor is None else like for like, tensor in zip(traced, found, strict=True)]  # tokens of effects
    for number, (like, tensor) in enumerate(zip(traced, found, strict=True)):
        if like is None:
            yield ""
            continue
        yield (
            _metadata_fault(like, tensor, inputs)
            or _storage_fault("input", like, tensor, [pair for pair in inputs if isinstance(pair[1], torch.Tensor)])
            or _storage_fault("result", like, tensor, list(zip(traced[:number], found[:number], strict=True)))
        )


def _metadata_fault(like: torch.Tensor, tensor: torch.Tensor, inputs: Sequence[tuple[torch.Tensor, Any]]) -> str:
    # an input may begin anywhere in its storage: its views begin as far from its start as the traced ones do
    moved = next(
        (given.storage_offset() - place.storage_offset() for place, given in inputs if _share_storage(place, like)), 0
    )
    facts = {
        "element type": (like.dtype, tensor.dtype),
        "shape": (tuple(like.shape), tuple(tensor.shape)),
        "strides": (like.stride(), tensor.stride()),
        "offset": (like.storage_offset() + moved, tensor.storage_offset()),
    }
    return next((f"expected {name} {a}, found {b}" for name, (a, b) in facts.items() if a != b), "")


def _storage_fault(
    kind: str, like: torch.Tensor, tensor: torch.Tensor, others: Sequence[tuple[torch.Tensor | None, Any]]
) -> str:
    """Return the first difference of storages: exactly the traced pairs share one."""
    for number, (other_like, other) in enumerate(others):
        if (
            other_like is not None
            and like.numel()
            and _share_storage(like, other_like) != _share_storage(tensor, other)
        ):
            wanted = "the storage" if _share_storage(like, other_like) else "another storage than that"
            return f"expected {wanted} of {kind} {number}"
    return ""


def _share_storage(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool(one.untyped_storage()._cdata == other.untyped_storage()._cdata)
