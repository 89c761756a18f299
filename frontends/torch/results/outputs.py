"""Outputs of a compiled graph: memory of each call, results as views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen

from ..captured_graph import GraphSignature
from ..import_context import TORCH_TYPES
from ..program import Blocks, OutputViewLike
from ..result_memory import Memory, ResultMemory, ResultPart, TensorForm

#: Alignment in bytes of tensors that are read or written in place: the widest access of a kernel.
ALIGNMENT = 16

#: A memory as a new tensor: shape, strides, element type.
MemoryForm = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


@frozen(eq=False)
class _Copied:
    """Part of a memory that is copied from a block after each launch."""

    memory: int
    form: TensorForm
    outlet: OutputViewLike
    order: tuple[int, ...]

    def copy(self, memories: Sequence[torch.Tensor], blocks: Sequence[torch.Tensor]) -> None:
        """Copy the part, with the axes of the result."""
        value = _outlet_view(blocks[self.outlet.block], self.outlet)
        back = tuple(self.order.index(axis) for axis in range(len(self.order)))
        view_of(memories[self.memory], self.form).copy_(value.permute(back))


@frozen(eq=False)
class _Block:
    """Block for outputs: a memory from a form on, or new memory of a size in bytes."""

    nbytes: int
    memory: int | None = None
    form: TensorForm | None = None


@frozen(eq=False)
class OutputAllocation:
    """Memories of each call, the output blocks in them, and copied outputs.

    Where `whole`, the blocks are the memories, in order. The memory of an output in place of an input is the input's.
    """

    memories: tuple[MemoryForm | None, ...]
    blocks: tuple[_Block, ...]
    copied: tuple[_Copied, ...]
    whole: bool

    def new(self, device: torch.device) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Return new memories and output blocks, with undefined elements."""
        found: list[Any] = [
            form and torch.empty_strided(*form[:2], dtype=form[2], device=device) for form in self.memories
        ]
        own = [memory for memory in found if memory is not None]
        return found, own if self.whole else [_block(block, found, device) for block in self.blocks]

    def empty(self) -> tuple[list[Any], list[Any]]:
        """Return memories and output blocks before they are allocated."""
        return [None] * len(self.memories), [None] * len(self.blocks)

    def allocate(self, number: int, memories: list[Any], blocks: list[Any], device: torch.device) -> None:
        """Allocate an output block, and the memory that it lies in."""
        block = self.blocks[number]
        form = None if block.memory is None else self.memories[block.memory]
        if block.memory is not None and form is not None and memories[block.memory] is None:
            memories[block.memory] = torch.empty_strided(*form[:2], dtype=form[2], device=device)
        blocks[number] = _block(block, memories, device)

    def copy_outputs(self, memories: Sequence[torch.Tensor], blocks: Sequence[torch.Tensor]) -> None:
        """Copy the outputs that lie elsewhere; `blocks` are all of the program."""
        for part in self.copied:
            part.copy(memories, blocks)


def output_allocation(layout: Blocks, memory: ResultMemory) -> OutputAllocation:
    """Return the allocation of each call for a program's output blocks."""
    in_place = set(layout.in_place.values())
    views = {view.name: view for view in layout.output_views}
    blocks = {n: _Block(layout.sizes[n]) for n in layout.fresh}
    copied: list[_Copied] = []
    nbytes = [each.nbytes for each in memory.memories]
    for number, each in enumerate(memory.memories):
        for part in each.parts:
            if part.name in in_place:
                continue
            outlet = views[part.name]
            size = layout.sizes[outlet.block]
            if _is_direct(part, outlet, size):
                blocks[outlet.block] = _Block(size, number, part.form)
            elif len(each.parts) == 1 and _lies_as_promised(part, outlet):
                blocks[outlet.block] = _Block(size, number)
                nbytes[number] = max(nbytes[number], size)
            else:
                copied.append(_Copied(number, part.form, outlet, part.order))
    forms = tuple(
        None if {part.name for part in each.parts} <= in_place else form_of_memory(each, size)
        for each, size in zip(memory.memories, nbytes, strict=True)
    )
    own = [number for number, form in enumerate(forms) if form is not None]
    whole = not copied and [b.memory for b in blocks.values()] == own
    whole = whole and all(b.form is not None and not b.form.offset for b in blocks.values())
    return OutputAllocation(forms, tuple(blocks.values()), tuple(copied), whole)


def form_of_memory(memory: Memory, nbytes: int) -> MemoryForm:
    """Return the tensor form of a memory.

    It is the form of its only output where that begins it, else a flat tensor.
    """
    form = memory.parts[0].form
    if len(memory.parts) == 1 and not form.offset and form.ends[1] == nbytes:
        return form.shape, form.strides, TORCH_TYPES[form.dtype]
    size = -(-nbytes // form.dtype.size)
    return (size,), (1,), TORCH_TYPES[form.dtype]


def view_of(memory: torch.Tensor, form: TensorForm) -> torch.Tensor:
    """Return elements of a storage as a tensor."""
    dtype = TORCH_TYPES[form.dtype]
    if memory.dtype is dtype:
        return memory.as_strided(form.shape, form.strides, form.offset)
    plain = torch.empty(0, dtype=dtype, device=memory.device)
    return plain.set_(memory.untyped_storage(), form.offset, form.shape, form.strides)


#: Returns a result from the memories of a call and its arguments.
ResultFunction = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]


def result_views(ends: GraphSignature, forms: Sequence[MemoryForm | None]) -> tuple[int | ResultFunction, ...]:
    """Return for each result its memory number, or its view function.

    Views with one name are one. A result without a memory is in place of an input, which it is.
    """
    return tuple(_giver(ends, result, forms) for result in ends.results)


def gather_results(
    results: Sequence[int | ResultFunction], memories: Sequence[torch.Tensor], arguments: Sequence[Any]
) -> list[Any]:
    """Return the results of a call."""
    return [memories[each] if type(each) is int else each(memories, arguments) for each in results]  # type: ignore[operator]


def _giver(
    ends: GraphSignature,
    result: str | int | float | None,
    forms: Sequence[MemoryForm | None],
) -> int | ResultFunction:
    if not isinstance(result, str):
        return lambda memories, arguments: result
    view = ends.memory.views[result]
    if view.memory is not None and forms[view.memory] is None:
        (part,) = ends.memory.memories[view.memory].parts
        at = ends.inputs.index(next(old for old, new in ends.updates.items() if new == part.name))
        return lambda memories, arguments: arguments[at]
    if view.memory is not None:
        number, form = view.memory, view.form
        exact = (form.shape, form.strides, TORCH_TYPES[form.dtype]) == forms[number] and not form.offset
        return number if exact else lambda memories, arguments: view_of(memories[number], form)
    assert view.argument is not None and view.given is not None, "a result lies in a memory or in an input"
    argument, given, form = view.argument, view.given, view.form
    if view.whole:
        return lambda memories, arguments: arguments[argument]
    return lambda memories, arguments: _view_of_input(arguments[argument], given, form)


def _view_of_input(tensor: torch.Tensor, given: TensorForm, form: TensorForm) -> torch.Tensor:
    """Return a view of an input, of a copy where the input's layout differs from the traced one."""
    if tensor.stride() != given.strides and not given.lies_as(tensor.stride()):
        tensor = torch.empty_strided(given.shape, given.strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    start = tensor.storage_offset() * tensor.element_size() // form.dtype.size
    return view_of(tensor, TensorForm(form.dtype, form.shape, form.strides, start + form.offset))


def _block(block: _Block, memories: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    if block.memory is None:
        return torch.empty(block.nbytes, dtype=torch.uint8, device=device)
    memory = memories[block.memory]
    return memory if block.form is None or not block.form.offset else view_of(memory, block.form)


def _is_direct(part: ResultPart, outlet: OutputViewLike, nbytes: int) -> bool:
    """Return whether an output can be written in its promised place.

    It must be dense, and all of its block.
    """
    dense = TensorForm(outlet.dtype, outlet.shape, outlet.strides, outlet.offset)
    whole = outlet.owned and not outlet.offset and dense.ends[1] == nbytes and _is_in_order(dense)
    return whole and part.form.is_dense and part.form.ends[0] % ALIGNMENT == 0


def _is_in_order(form: TensorForm) -> bool:
    return form.lies_as(torch.empty(form.shape, device="meta").stride())


def _lies_as_promised(part: ResultPart, outlet: OutputViewLike) -> bool:
    """Return whether an output has the promised form in its block."""
    strides = tuple(part.form.strides[axis] for axis in part.order)
    found = TensorForm(outlet.dtype, outlet.shape, outlet.strides, outlet.offset)
    return outlet.owned and outlet.offset == part.form.offset and found.lies_as(strides)


def _outlet_view(block: torch.Tensor, outlet: OutputViewLike) -> torch.Tensor:
    """Return an output as a view of its block; blocks begin at any element of a storage."""
    start = block.storage_offset() * block.element_size() // outlet.dtype.size
    return view_of(block, TensorForm(outlet.dtype, outlet.shape, outlet.strides, start + outlet.offset))
