"""Partition of a joint graph of autograd into forward and backward graph.

Saved tensors are those of a minimum cut. Views are computed again from the tensor that they show, as a view of the
saved tensor costs no memory, and a saved part of it would be copied before kernels read it:

    qkv -> q, k, v        saved q, k, v: three copies in the backward graph        saved qkv: none
"""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

import torch
from torch._functorch import config
from torch._functorch._aot_autograd.descriptors import InputMutationAOTOutput
from torch._functorch.partitioners import default_partition, min_cut_rematerialization_partition
from torch.utils.checkpoint import CheckpointPolicy

from ..results import ALIGNMENT
from .constant_values import fold_constant_values
from .kept_recurrences import keep_recurrences

aten = torch.ops.aten
#: Products, the right factor last.
_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
#: Rows of fewer bytes keep their length: unused elements would be a larger part of them than 1 %.
MIN_ROW_BYTES = 100 * ALIGNMENT
WORD = 4


def partition_joint_graph(joint: Any, examples: Any, **options: Any) -> tuple[Any, Any]:
    """Return the graphs of a joint graph with the fewest saved bytes.

    Operands of products are computed again like other elementwise values: kernels that fetch them compute them.
    A backward graph cannot compute anything again from an input that the module updates: it would read the new
    elements. Complex values cross between graphs as the pairs that the forward graph computes, not as their lazy
    conjugates. In such cases every value that the backward graph reads is saved. Values that depend on no argument
    are constants of both graphs.
    """
    fold_constant_values(joint)
    keep_recurrences(joint.graph)
    slice_parts(joint.graph)
    read_saved_copies(joint.graph)
    align_product_rows(joint.graph)
    with config.patch(ban_recompute_materialized_backward=False, recompute_views=True):
        forward, backward = min_cut_rematerialization_partition(joint, examples, **options)
    (output,) = (node for node in joint.graph.nodes if node.op == "output")
    changed = [d.mutated_input for d in output.meta.get("desc", ()) if isinstance(d, InputMutationAOTOutput)]
    (given,) = (node.args[0] for node in forward.graph.nodes if node.op == "output")
    saved = [node for node in given[options["num_fwd_outputs"] :] if isinstance(node, torch.fx.Node)]
    if not any(_must_save_all(node, changed) for node in saved):
        return forward, backward
    split: tuple[Any, Any] = default_partition(joint, examples, **options)
    return split


def slice_parts(graph: torch.fx.Graph) -> None:
    """Replace parts of divided tensors by slices: views of one tensor."""
    for node in list(graph.nodes):
        if node.target is not operator.getitem or not isinstance(node.args[0], torch.fx.Node):
            continue
        divided, number = node.args
        if divided.target in (aten.split_with_sizes.default, aten.split.Tensor):
            whole, sizes, dim = (*divided.args, 0)[:3]
            extent = node.meta["val"].shape[dim]
            start = sum(sizes[:number]) if isinstance(sizes, (list, tuple)) else sizes * number
            new = (aten.slice.Tensor, (whole, dim, start, start + extent))
        elif divided.target is aten.unbind.int:
            new = (aten.select.int, (divided.args[0], *(divided.args[1:] or (0,)), number))
        else:
            continue
        with graph.inserting_before(node):
            part = graph.call_function(*new)
        part.meta = dict(node.meta)
        node.replace_all_uses_with(part)
        graph.erase_node(node)
        if not divided.users:
            graph.erase_node(divided)


def read_saved_copies(graph: torch.fx.Graph) -> None:
    """Let backward operations read a value's copy in another order of dims.

        c = clone(permute(y));  g = f(y)   ->   g = f(permute(c))

    The copy is saved then, and both are views of it: a product would read it slowly in the order of `y`. A result of
    the module is not saved: a caller may write to it.
    """
    backward, returned = _backward_nodes(graph), _returned_storages(graph)
    for copy in [node for node in graph.nodes if node.target is aten.clone.default and node not in backward]:
        moved = copy.args[0]
        source = moved.args[0] if moved.target is aten.permute.default else None
        if source is None or source.op == "placeholder" or not returned.isdisjoint(map(_storage_of, (source, copy))):
            continue
        copy.meta["recompute"] = CheckpointPolicy.MUST_SAVE
        same = [source]
        for node in same:
            same += [user for user in node.users if user.target is aten.alias.default]
        readers = [(node, user) for node in same for user in node.users if user in backward and copy < user]
        if readers:
            order = [moved.args[1].index(dim) for dim in range(len(moved.args[1]))]
            with graph.inserting_after(copy):
                view = graph.call_function(aten.permute.default, (copy, order))
            view.meta = {**moved.meta, "val": copy.meta["val"].permute(order)}
            for node, user in readers:
                user.replace_input_with(node, view)


def align_product_rows(graph: torch.fx.Graph) -> None:
    """Give products rows of whole 16 bytes; their readers take slices.

        y = mm(a, b)  of 50,257 columns   ->   y = mm(a, pad(b))[:, :50257]  of 50,264

    Kernels read and write 16 bytes at once then. Results of the module are copied, where elements are shorter than a
    word: a product that stores single ones takes longer than its copy.
    """
    backward, returned = _backward_nodes(graph), _returned_storages(graph)
    for node in [node for node in graph.nodes if node.target in _PRODUCTS and node not in backward]:
        value = node.meta["val"]
        row, unit = value.shape[-1], ALIGNMENT // value.element_size()
        missing = -row % unit
        is_returned = _storage_of(node) in returned
        if not missing or row * value.element_size() < MIN_ROW_BYTES or (is_returned and value.element_size() >= WORD):
            continue
        factors = [each for n, each in enumerate(node.args) if n != len(node.args) - 2]  # all but the left one
        with graph.inserting_before(node):
            for factor in factors:
                if factor.meta["val"].shape[-1] == row:
                    node.replace_input_with(factor, _pad_rows(graph, factor, missing))
        whole = value.new_empty((*value.shape[:-1], row + missing))
        with graph.inserting_after(node):
            part = graph.call_function(aten.slice.Tensor, (node, value.dim() - 1, 0, row))
        last = part
        if is_returned:
            with graph.inserting_after(part):
                last = graph.call_function(aten.clone.default, (part,), {"memory_format": torch.contiguous_format})
            last.meta = dict(node.meta)
        node.replace_all_uses_with(last, lambda user, part=part: user is not part)
        part.meta, node.meta = {**node.meta, "val": whole[..., :row]}, {**node.meta, "val": whole}


def _pad_rows(graph: torch.fx.Graph, node: torch.fx.Node, count: int) -> torch.fx.Node:
    padded = graph.call_function(aten.constant_pad_nd.default, (node, [0, count], 0.0))
    value = node.meta["val"]
    padded.meta = {**node.meta, "val": value.new_empty((*value.shape[:-1], value.shape[-1] + count))}
    return padded


def _returned_storages(graph: torch.fx.Graph) -> set[Any]:
    """Return the storages of a module's results and gradients."""
    (output,) = (node for node in graph.nodes if node.op == "output")
    return {_storage_of(node) for node in output.all_input_nodes}


def _storage_of(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    return value.untyped_storage()._cdata


def _backward_nodes(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """Return the nodes that depend on gradients of results."""
    found: set[torch.fx.Node] = set()
    for node in graph.nodes:
        given = node.op == "placeholder" and "tangents" in str(node.target)
        if given or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


def _must_save_all(saved: torch.fx.Node, changed: Collection[Any]) -> bool:
    value = saved.meta.get("val")
    lazy = isinstance(value, torch.Tensor) and value.is_complex() and saved.op == "call_function"
    return lazy or (saved.op == "placeholder" and saved.meta.get("desc") in changed)
