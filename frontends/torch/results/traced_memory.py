"""Traced results: their storages, and the outputs that fill these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from attrs import evolve, frozen

from ..calls import tensor_of
from ..import_context import ImportContext, Value, dtype_of, memory_order
from ..result_memory import Memory, ResultMemory, ResultPart, ResultView, TensorForm, dense_form

#: Limit of an output that fills a whole storage, in multiples of the bytes that results need of it.
MAX_UNUSED_FACTOR = 2


@frozen(eq=False)
class _Result:
    """Result of a traced graph, and the nodes of its storage, itself first."""

    node: torch.fx.Node
    form: TensorForm
    chain: tuple[torch.fx.Node, ...]


def result_memory(ctx: ImportContext, nodes: Sequence[torch.fx.Node], places: Sequence[torch.fx.Node]) -> ResultMemory:
    """Return the memory that PyTorch traced for the results `nodes`.

    The graph has the inputs `places`. The outputs that fill the memory are added to the import context.
    """
    numbers = {place: number for number, place in enumerate(places)}
    views: dict[str, ResultView] = {}
    stored: dict[object, list[_Result]] = {}
    for node in dict.fromkeys(nodes):
        chain = tuple(_chain(node))
        result = _Result(node, form_of(ctx, node), chain)
        if chain[-1] in numbers and _is_plain(tensor_of(chain[-1])):
            views[node.name] = _view_of_input(result, numbers[chain[-1]])
        else:
            stored.setdefault(_storage(node.meta.get("val")) or node, []).append(result)
    memories: list[Memory] = []
    names: set[str] = set()
    for results in stored.values():
        parts = tuple(_result_part(ctx, node, form, names) for node, form in _carriers(ctx, results))
        forms = [*(part.form for part in parts), *(result.form for result in results)]
        views |= {r.node.name: ResultView(r.form, memory=len(memories)) for r in results}
        memories.append(Memory(parts, max(form.ends[1] for form in forms)))
    return ResultMemory(tuple(memories), views)


def form_of(ctx: ImportContext, node: torch.fx.Node) -> TensorForm:
    """Return the form that a node was traced with, dense by default."""
    value = tensor_of(node)
    if value is None or not _is_plain(value):
        known = ctx.value(node)
        return dense_form(ctx.type(known)) if isinstance(known, Value) else TensorForm(dtype_of(torch.bool), (), ())
    return _form(value)


def _form(value: torch.Tensor) -> TensorForm:
    return TensorForm(dtype_of(value.dtype), tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))


def _is_plain(value: object) -> bool:
    """Return whether a traced tensor is strided and real, without lazy negation or conjugation."""
    return _is_strided(value) and not value.dtype.is_complex  # type: ignore[attr-defined]


def _is_strided(value: object) -> bool:
    strided = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return strided and not (value.is_conj() or value.is_neg())  # type: ignore[attr-defined]


def _storage(value: object) -> int | None:
    """Return the identity of a traced tensor's storage; views of complex tensors may be real."""
    return value.untyped_storage()._cdata if _is_strided(value) else None  # type: ignore[attr-defined]


def _chain(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Yield a node, then each node that it is a view of."""
    storage = _storage(node.meta.get("val"))
    found: torch.fx.Node | None = node
    while found is not None:
        yield found
        sources = found.all_input_nodes if storage is not None else ()
        found = next((source for source in sources if storage in _storages(source)), None)


def computes(found: Sequence[object]) -> bool:
    """Return whether traced results are more than views of inputs.

    For a batch of no elements Dynamo asks for nothing else.
    """
    nodes = [node for node in found if isinstance(node, torch.fx.Node)]
    return not all(map(is_view_of_input, nodes))


def is_view_of_input(node: torch.fx.Node) -> bool:
    """Return whether a node is an input or a view of one."""
    return list(_chain(node))[-1].op == "placeholder"


def _storages(node: torch.fx.Node) -> set[int | None]:
    value = node.meta.get("val")
    return {_storage(part) for part in (value if isinstance(value, (list, tuple)) else (value,))} - {None}


def _view_of_input(result: _Result, number: int) -> ResultView:
    place = result.chain[-1]
    given = _form(place.meta["val"])
    start = given.offset * given.dtype.size // result.form.dtype.size
    form = evolve(result.form, offset=result.form.offset - start)
    return ResultView(form, argument=number, given=evolve(given, offset=0), whole=result.node is place)


def _carriers(ctx: ImportContext, results: Sequence[_Result]) -> Iterator[tuple[torch.fx.Node, TensorForm]]:
    """Yield the nodes, with their forms, of the outputs that fill a storage.

    It is one that all results are views of, else each result that is no view of another.
    """
    for result in results:
        if all(result.form.covers(other.form) for other in results):
            yield result.node, result.form
            return
    needed = sum(result.form.size * result.form.dtype.size for result in results)
    for node in dict.fromkeys(node for result in results for node in reversed(result.chain)):
        if not isinstance(ctx.values.get(node), Value) or not _is_plain(tensor_of(node)):
            continue
        form = form_of(ctx, node)
        if all(form.covers(result.form) for result in results):
            first, last = form.ends
            if _share(results) or last - first <= MAX_UNUSED_FACTOR * needed:
                yield node, form
                return
    for result in results:
        if result.form.overlaps:
            ctx.fail(f"result {result.node.name!r} has elements that lie on one another, with strides "
                        f"{list(result.form.strides)}, and is no view of a dense tensor")  # fmt: skip
        yield result.node, result.form


def _share(results: Sequence[_Result]) -> bool:
    """Return whether results may share elements, or one has an element at several indices."""
    ends = sorted(result.form.ends for result in results)
    disjoint = all(before[1] <= after[0] for before, after in pairwise(ends))
    return not disjoint or any(result.form.overlaps for result in results)


def _result_part(ctx: ImportContext, node: torch.fx.Node, form: TensorForm, names: set[str]) -> ResultPart:
    """Return a node as an output, its axes in memory order."""
    value = ctx.value(node)
    order = _order(node, form)
    ctx.origin = node.name
    value = ctx.cast(value, form.dtype)
    if order != tuple(range(len(order))):
        value = ctx.emit("transpose", value, perm=order)
    name = ctx.output(value, node.name)
    if name in names:
        name = ctx.emit("identity", name)
    names.add(name)
    return ResultPart(str(name), form, order)


def _order(node: torch.fx.Node, form: TensorForm) -> tuple[int, ...]:
    value = tensor_of(node)
    return tuple(range(len(form.shape))) if value is None or not _is_plain(value) else memory_order(value)
