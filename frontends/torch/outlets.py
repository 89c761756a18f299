"""What a compiled graph returns: the tensors that each call makes for outputs, and outputs as views of blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from .program import Blocks, OutletLike
from .reader import TORCH_TYPES


@frozen(eq=False)
class Made:
    """The tensors to be made for a call, by shape, strides and type, and the outputs that are found in all blocks.

    Where `whole`, the tensors that are made are the outputs `names`, each as it is.
    """

    forms: tuple[tuple[tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    outlets: tuple[OutletLike, ...]
    whole: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(outlet.name for outlet in self.outlets)

    def new(self, device: torch.device) -> list[torch.Tensor]:
        """Return new tensors, whose elements are anything."""
        return [torch.empty_strided(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in self.forms]

    def found(self, blocks: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the outputs by name; what is a view of something else is copied, as its owner may write to it."""
        views = {outlet.name: _view(blocks[outlet.block], outlet) for outlet in self.outlets}
        return {o.name: views[o.name] if o.owned else views[o.name].clone() for o in self.outlets}


def made_of(layout: Blocks) -> Made:
    """Return what is to be made for the blocks of outputs of a program."""
    own = {outlet.block: outlet for outlet in layout.outlets if outlet.owned}
    whole = {n: _is_whole(own[n], layout.sizes[n]) for n in layout.fresh}
    forms = tuple(
        (own[n].shape, _dense(own[n].shape), TORCH_TYPES[own[n].dtype])
        if whole[n]
        else ((layout.sizes[n],), (1,), torch.uint8)
        for n in layout.fresh
    )
    as_they_are = all(whole.values()) and [o.block for o in layout.outlets] == list(layout.fresh)
    return Made(forms, tuple(layout.outlets), as_they_are)


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return torch.empty(shape, device="meta").stride()


def _is_whole(outlet: OutletLike, nbytes: int) -> bool:
    """Whether an output is dense and all of its block."""
    steps = zip(_dense(outlet.shape), outlet.strides, outlet.shape, strict=True)
    dense = all(a == b for a, b, extent in steps if extent != 1) or 0 in outlet.shape
    return dense and outlet.offset == 0 and torch.Size(outlet.shape).numel() * outlet.dtype.size == nbytes


def _view(block: torch.Tensor, outlet: OutletLike) -> torch.Tensor:
    """Return an output as a view of the block that it lies in."""
    dtype = TORCH_TYPES[outlet.dtype]
    if block.dtype is dtype and block.shape == outlet.shape and outlet.offset == 0 and block.is_contiguous():
        return block
    flat = block.reshape(-1).view(dtype)
    return flat.as_strided(outlet.shape, outlet.strides, flat.storage_offset() + outlet.offset)
