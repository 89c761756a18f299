"""Buffers of an exported program that share memory, as views.

PyTorch cannot decompose a program that writes to one of several tensors in the same memory, and a plan would keep them
as several. So all of them are read from one:

PyTorch cannot decompose a program that writes to one of several tensors in the same memory, and a plan would keep them
as several. So all of them are read from one:

    b lies in the memory of a[:2]:    add_(a, x); add(b, 1)    ->    v = a[:2]; add_(a, x); add(v, 1)
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from attrs import frozen
from torch.export.graph_signature import InputKind

from ....ir import GraphError, quote

_TENSOR_KINDS = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@frozen(eq=False)
class _StoredTensor:
    """Tensor of a program: its placeholder, its target and its memory."""

    place: str
    target: str
    tensor: torch.Tensor
    is_parameter: bool

    @property
    def reach(self) -> tuple[int, int]:
        """Begin and end of its memory, in bytes."""
        tensor = self.tensor
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        last = sum((extent - 1) * stride for extent, stride in steps)
        first = tensor.storage_offset() * tensor.element_size()
        return int(first), int(first + (last + 1) * tensor.element_size())


def _held_tensors(signature: Any, held: Mapping[str, Any]) -> list[_StoredTensor]:
    """Return the parameters, buffers and constants that have elements."""
    found = []
    for spec in signature.input_specs:
        tensor = held.get(spec.target) if spec.kind in _TENSOR_KINDS else None
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            found.append(_StoredTensor(spec.arg.name, spec.target, tensor, spec.kind is InputKind.PARAMETER))
    return found


def _sharing_groups(tensors: Sequence[_StoredTensor]) -> Iterator[list[_StoredTensor]]:
    """Yield the overlapping tensors of each memory, the furthest reach first."""
    memories: dict[int, list[_StoredTensor]] = {}
    for each in tensors:
        memories.setdefault(each.tensor.untyped_storage()._cdata, []).append(each)
    for group in memories.values():
        ordered = sorted(group, key=lambda each: (each.reach[0], -each.reach[1]))
        if any(b.reach[0] < a.reach[1] for a, b in pairwise(ordered)):
            yield ordered


def check_memory(signature: Any, held: Mapping[str, Any], written: Collection[str]) -> None:
    """Check that no buffer which a decomposed program writes shares its memory.

    Raises `GraphError` with the names of two that do.
    """
    if not written:
        return
    for group in _sharing_groups(_held_tensors(signature, held)):
        for each in group:
            if each.target in written:
                other = next(o for o in group if o is not each)
                raise GraphError(
                    f"buffer {quote(each.target)} is written, and shares its memory with {quote(other.target)}",
                    hint="register one of them, and take views of it where the program runs",
                )


def separate_buffers(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Return a program whose buffers have separate memory.

    Its constants become buffers, which a program may write.

    Raises `GraphError` where tensors share memory that none of them covers.
    """
    signature = copy.deepcopy(program.graph_signature)
    constants = [spec for spec in signature.input_specs if spec.kind is InputKind.CONSTANT_TENSOR]
    groups = [
        group
        for group in _sharing_groups(_held_tensors(signature, {**program.state_dict, **program.constants}))
        if not all(each.is_parameter for each in group)  # tied weights, which no program writes
    ]
    if not constants and not groups:
        return program
    for spec in constants:
        spec.kind, spec.persistent = InputKind.BUFFER, False
    module = copy.deepcopy(program.graph_module)
    state, others = dict(program.state_dict), dict(program.constants)
    for group in groups:
        for each in _read_from_one(module.graph, group):
            (state if each.target in state else others)[each.target] = each.tensor.detach().clone()
    module.recompile()
    return program._update(module, signature, state_dict=state, constants=others)


def _read_from_one(graph: torch.fx.Graph, group: Sequence[_StoredTensor]) -> Sequence[_StoredTensor]:
    """Replace the tensors of a memory by views of the first; return the others."""
    whole, *others = group
    places = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    after = next(node for node in graph.nodes if node.op != "placeholder")
    for other in others:
        covered = other.reach[1] <= whole.reach[1] and other.tensor.dtype is whole.tensor.dtype
        if not covered or not whole.tensor.is_contiguous():
            raise GraphError(
                f"buffers {quote(whole.target)} and {quote(other.target)} share memory that neither covers",
                hint="register one of them, and take views of it where the program runs",
            )
        with graph.inserting_before(after):
            view = _view(graph, places[whole.place], whole.tensor, other.tensor)
        places[other.place].replace_all_uses_with(view)
    return others


def _view(graph: torch.fx.Graph, place: torch.fx.Node, whole: torch.Tensor, other: torch.Tensor) -> torch.fx.Node:
    """Return a tensor as a view of the whole, as a slice where it is dense."""
    aten = torch.ops.aten
    offset = other.storage_offset() - whole.storage_offset()
    if other.shape == whole.shape and other.stride() == whole.stride():
        return place
    if not other.is_contiguous():
        return _call(graph, aten.as_strided.default, place, list(other.shape), list(other.stride()), offset)
    flat = _call(graph, aten.view.default, place, [-1])
    part = _call(graph, aten.slice.Tensor, flat, 0, offset, offset + other.numel())
    return _call(graph, aten.view.default, part, list(other.shape))


def _call(graph: torch.fx.Graph, target: Any, place: torch.fx.Node, *arguments: Any) -> torch.fx.Node:
    node = graph.call_function(target, (place, *arguments))
    example = place.meta["val"]
    with example.fake_mode:
        node.meta["val"] = target(example, *arguments)
    return node
