"""Shapes with dims that vary, as callers write them.

A dim has a name and a range, which several inputs may share:

    shapes={"x": ("batch", 3, 224, 224)}, dims={"batch": (1, 64)}
    shapes={"x": ("1..64", 3, 224, 224)}                                a dim of its own, named x.0
    shapes={"x": (Dim("batch", 1, 64), 3, 224, 224)}
    shapes={"x": (1, 3, "32*h", "32*w")}, dims={"h": (1, 16), "w": (1, 16)}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from attrs import frozen

from ...ir import Dim, SymbolicExtent, UsageError, quote

#: Shape of an input: sizes, names of dims, ranges, or dims.
SymbolicShape: TypeAlias = Sequence[int | str | Dim]
#: Range of a dim.
DimRange: TypeAlias = tuple[int, int] | str | Dim
Extents: TypeAlias = tuple[SymbolicExtent, ...]

_AFFINE = re.compile(r"(?:(?P<factor>[1-9]\d*) ?\* ?)?(?P<name>[^*+\s-]+) ?(?P<const>[+-] ?\d+)?")
_RANGE = re.compile(r"(?:(?P<name>[^:]+):)?(?P<low>\d+)\.\.(?P<high>\d+)")


@frozen
class ShapeRequest:
    """Shapes of inputs by name, and the dims that they name."""

    inputs: Mapping[str, Extents]
    dims: Mapping[str, Dim]

    @property
    def is_static(self) -> bool:
        """Return whether every size is fixed."""
        return not self.dims and all(extent.is_const for shape in self.inputs.values() for extent in shape)

    @property
    def fixed(self) -> dict[str, tuple[int, ...]]:
        """The shapes all of whose sizes are fixed."""
        fixed = {name: shape for name, shape in self.inputs.items() if all(extent.is_const for extent in shape)}
        return {name: tuple(extent.const for extent in shape) for name, shape in fixed.items()}


def read_range(name: str, value: object) -> Dim:
    """Return the dim of a range: sizes, `1..64`, or a dim.

    Raises `UsageError` for anything else.
    """
    if isinstance(value, Dim):
        return Dim(name, value.low, value.high).check()
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match and not match["name"]:
        return Dim(name, int(match["low"]), int(match["high"])).check()
    pair = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else ()
    if len(pair) == 2 and all(isinstance(size, Integral) for size in pair):
        return Dim(name, int(pair[0]), int(pair[1])).check()
    raise UsageError(
        f"dim {quote(name)}: expected its least and greatest size, found {value!r}", hint='give (1, 64), or "1..64"'
    )


def read_shapes(shapes: Mapping[str, Any], dims: Mapping[str, Any]) -> ShapeRequest:
    """Return shapes whose sizes may vary.

    Raises `UsageError` for sizes that are none, for a name without a range, and for two ranges of one name.
    """
    for what, given in (("shapes by input name", shapes), ("ranges by the name of a dim", dims)):
        if not isinstance(given, Mapping):
            raise UsageError(f"expected {what}, found {type(given).__name__}", hint='give {"x": (1, 3)}')
    known = {str(name): read_range(str(name), value) for name, value in dims.items()}
    inputs: dict[str, Extents] = {}
    for name, shape in shapes.items():
        if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
            raise _misfit(name, shape)
        inputs[name] = tuple(_extent(name, axis, entry, shape, known) for axis, entry in enumerate(shape))
    return ShapeRequest(inputs, known)


def _extent(name: str, axis: int, entry: object, shape: object, known: dict[str, Dim]) -> SymbolicExtent:
    if isinstance(entry, Integral):
        return SymbolicExtent(int(entry))
    dim = entry if isinstance(entry, Dim) else None
    match = _RANGE.fullmatch(entry) if isinstance(entry, str) else None
    if match:
        dim = Dim(match["name"] or f"{name}.{axis}", int(match["low"]), int(match["high"])).check()
    if dim is not None:
        if known.setdefault(dim.name, dim) != dim:
            raise UsageError(f"dim {quote(dim.name)} has two ranges: {known[dim.name]} and {dim}")
        return SymbolicExtent(0, ((dim.name, 1),))
    affine = _AFFINE.fullmatch(entry) if isinstance(entry, str) else None
    if affine and affine["name"] in known:
        const = int((affine["const"] or "0").replace(" ", ""))
        return SymbolicExtent(const, ((affine["name"], int(affine["factor"] or 1)),))
    if isinstance(entry, str):
        raise UsageError(
            f"input {quote(name)}: dim {quote(entry)} has no range",
            hint=f"give dims={{{entry!r}: (1, 64)}}, or --dynamic {entry}=1..64",
        )
    raise _misfit(name, shape)


def _misfit(name: object, shape: object) -> UsageError:
    return UsageError(
        f"shape of {quote(str(name))}: expected all extents of an input, found {shape!r}",
        hint="give the input's name with its whole shape, as in {'x': (1, 3, 224, 224)}, or with a dim that varies, "
        "as in {'x': ('1..64', 3, 224, 224)}",
    )
