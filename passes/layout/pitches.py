"""Pitches: rows of products' factors that begin at multiples of bytes.

Copies and tensor maps move 16 bytes at once, from multiples of 16 bytes; bulk copies are three times as fast where rows
begin at multiples of 32. Rows of a tensor between kernels may take more elements than they have, so that every row
begins at such a multiple:

    y[m, v] = exp(x[m, v])    with 50,257 columns of halves   ->   row m of y begins at element 50,272 m
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from attrs import evolve

from ...ir import WIDEST_BYTES, TensorType, as_index, is_affine, linearise
from ..fusion import Programs
from .accesses import Aliases, dims_of, find_aliases
from .fixed_layouts import fixed_tensors, root_tensor

#: Multiples of bytes at which rows begin, the greatest first, of those that leave few bytes unused.
ROW_UNITS = (32, WIDEST_BYTES)
#: Fewest such units of a row: unused elements would be a larger part of fewer than 1 %.
MIN_ROW_UNITS = 100


def pad_rows(programs: Programs, factors: Iterable[str]) -> Programs:
    """Return programs with padded rows of factors of products.

    These rows begin at multiples of 16 bytes.

    Tensors stay that are not free to move (`fixed_tensors`), and those with a view that no pitch describes.
    """
    aliases = find_aliases(programs)
    fixed, types = fixed_tensors(programs, aliases), dict(programs.types)
    for tensor in dict.fromkeys(factors):
        if tensor not in fixed and (padded := padded_type(types[tensor])) is not None:
            shown = [view for view in aliases.shown if root_tensor(view, aliases) == tensor]
            if fixed.isdisjoint(shown):
                found = dict(_padded_views(aliases, padded, shown))
                types |= {tensor: padded, **found} if len(found) == len(shown) else {}
    return evolve(programs, types=types)


def paddable_types(types: Mapping[str, TensorType], fixed: Collection[str]) -> dict[str, TensorType]:
    """Return types with padded rows, except those of `fixed` tensors."""
    return {t: type_ if t in fixed else padded_type(type_) or type_ for t, type_ in types.items()}


def padded_type(type_: TensorType) -> TensorType | None:
    """Return a type whose rows begin at multiples of `ROW_UNITS`.

    None where they do, or where rows are short.
    """
    row, size = type_.shape[-1] if type_.shape else 0, type_.dtype.size
    unit = next((each // size for each in ROW_UNITS if row * size >= MIN_ROW_UNITS * each), 0)
    if not unit or row % unit == 0 or row == type_.size:
        return None
    return evolve(type_, pitch=-(-row // unit) * unit)


def _padded_views(aliases: Aliases, padded: TensorType, shown: Collection[str]) -> Iterator[tuple[str, TensorType]]:
    """Yield the types of views of a padded tensor, where a pitch describes them."""
    for view in shown:
        dims = dims_of(aliases.types[view])
        _, indices = aliases.element(view, [as_index(d) for d in dims])
        address = linearise(indices, padded.strides)
        found = evolve(aliases.types[view], pitch=padded.pitch)
        if is_affine(address) and address == linearise([as_index(d) for d in dims], found.strides):
            yield view, found
