"""Images of few channels with a border and whole words for each pixel.

A convolution of three channels reads three bytes of each tap, which lie anywhere: threads load and pack them one by
one. Where the image is rounded to bytes for this convolution alone, it is stored with its border, and with as many
channels as fill words. A row of taps is then one run of memory, and the filter has zeros at the further places:

    q[n, c, y, x] = u8(round(i[n, c, y, x]) + z);   d[n, c, y, x] = (f32(q[n, c, y, x]) - z) * t
    y[n, k, p, o] = sum_{c < 3, r < 7, s < 7} v[k, c, r, s] * d[n, c, 2*p + r - 3, 2*o + s - 3 or 0]
      ->   u[n, y, x] = u8(round(i[n, x % 4, y - 3, x // 4 - 3]) + z) or z;   e[n, y, x] = (f32(u[n, y, x]) - z) * t
           y[n, k, p, o] = sum_{r < 7, s < 32} w[k, r, s] * e[n, 2*p + r, 8*o + s]

A scaled byte is finite, so that a product with 0 is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeGuard

import numpy as np
from attrs import evolve, frozen

from ....ir import (
    Array,
    Call,
    Const,
    DType,
    Expr,
    Guard,
    Index,
    InRange,
    Read,
    Statement,
    TensorType,
    Var,
    as_index,
    call,
    expr_variables,
    factors,
    reads,
    rebuild,
    substitute_expr,
)
from ...statements import DefUse, Edit, Match, Programs, RewriteRule, anything, is_plain, reduction, rewrite
from .narrow_products import widened_byte

#: Bytes of a word, and of the pieces that copies move at once.
WORD_BYTES, PIECE_BYTES = 4, 16
#: Fewest products of a convolution whose image is stored anew.
MIN_PRODUCTS = 1 << 22
SUM = reduction("sum", anything())


def pad_images(programs: Programs) -> Programs:
    """Return programs whose convolutions of bytes in few channels read words."""
    constants, made = programs.graph.constants, dict[str, Array]()

    def guard(match: Match) -> _Padding | None:
        return _find(match, constants)

    def replace(match: Match, found: _Padding) -> Edit:
        return _pad(match, found, constants, made)

    found = rewrite(programs, RewriteRule(SUM, guard, replace))
    if found is programs:
        return programs
    types = {**found.graph.types, **{name: found.types[name] for name in made}}
    return evolve(found, graph=evolve(found.graph, constants={**found.graph.constants, **made}, types=types))


@frozen
class _Scaled:
    """A dequantised factor: the read of the value, the definition of that, the byte that it widens, its zero point."""

    read: Read
    made: Statement
    byte: Read
    zero: Expr | None


@frozen
class _Padding:
    """A convolution with its factors, the definition of the image's bytes, and its channels.

    `steps` has the step of each window dim of the image by its reduced axis.
    """

    image: _Scaled
    filters: _Scaled
    source: Statement
    channel: int
    windows: Mapping[int, tuple[Var, Var]]


def _find(match: Match, constants: Mapping[str, Array]) -> _Padding | None:
    total, index = match.root, match.index
    parts = factors(total.body)
    if len(parts) != 2 or not is_plain(total) or prod(v.extent for v in (*total.axes, *total.reduce)) < MIN_PRODUCTS:
        return None
    for first, second in (parts, parts[::-1]):
        image, filters = _scaled(first, total, index), _scaled(second, total, index)
        if image is None or filters is None or filters.read.guards or filters.byte.tensor not in constants:
            continue
        source = index.single_definition(image.byte.tensor)
        if source is None or not _is_plain_map(source) or not index.is_only_read_by(source.target, [image.made]):
            continue
        moved = {
            filters.made.axes[n]
            for n, i in enumerate(filters.read.indices)
            if {v for v, _ in i.terms} & {*total.reduce}
        }
        if (
            any(read.guards for read in reads(source.body))
            or _fixed(image)
            or filters.zero is not None
            or _fixed(filters) & moved
        ):
            continue
        found = _windows(image.read, filters.read, total)
        if found is not None:
            return _Padding(image, filters, source, *found)
    return None


def _scaled(part: Expr, total: Statement, index: DefUse) -> _Scaled | None:
    """Return a dequantised factor that nothing else reads."""
    made = index.single_definition(part.tensor) if isinstance(part, Read) and part.fill == 0 else None
    if made is None or not isinstance(part, Read) or not _is_plain_map(made):
        return None
    found = [byte for f in factors(made.body) if (byte := widened_byte(f, index.types)) is not None]
    if len(found) != 1 or index.types[found[0].byte.tensor].dtype.is_float:
        return None
    if found[0].byte.guards or found[0].byte.indices != made.write or not index.is_only_read_by(part.tensor, [total]):
        return None
    return _Scaled(part, made, found[0].byte, found[0].zero)


def _fixed(scaled: _Scaled) -> frozenset[Var]:
    """Return the axes that move a scale or a zero point."""
    zero = Const(0, DType.I32)
    return expr_variables(rebuild(scaled.made.body, lambda node: zero if node == scaled.byte else node))


def _is_plain_map(statement: Statement) -> bool:
    """Return whether a statement computes each element from its own index."""
    own = statement.write == tuple(map(as_index, statement.axes))
    return own and statement.is_pointwise and is_plain(statement)


def _windows(image: Read, filters: Read, total: Statement) -> tuple[int, dict[int, tuple[Var, Var]]] | None:
    """Return the dim of the channels, and the axes of rows and taps of the window dims.

    None unless a filter has an element for each tap and channel, and the border is no other than that of the windows.
    """
    channel, windows = None, dict[int, tuple[Var, Var]]()
    for d, place in enumerate(image.indices):
        moving = {v: f for v, f in place.terms if isinstance(v, Var)}
        reduced = [v for v in moving if v in total.reduce]
        if len(moving) != len(place.terms) or len(reduced) > 1:
            return None
        if len(moving) == 2 and reduced:
            (row,) = (v for v in moving if v not in reduced)
            windows[d] = row, reduced[0]
        elif reduced and place == as_index(reduced[0]) and channel is None:
            channel = d
        elif reduced or place.const or len(moving) != 1:
            return None
    if channel is None or not windows or image.indices[channel].bounds()[1] + 1 >= PIECE_BYTES:
        return None
    (c, _), (row, tap) = image.indices[channel].terms[0], windows[max(windows)]
    taps = {c, *(tap for _, tap in windows.values())}
    plain = all(len(i.terms) == 1 and not i.const and i.terms[0][1] == 1 for i in filters.indices)
    own = {v for i in filters.indices for v, _ in i.terms}
    last = image.indices[max(windows)]
    if not isinstance(c, Var) or c.extent % WORD_BYTES == 0 or {*total.reduce} != taps or not plain or not taps <= own:
        return None
    guarded = {guard.index for guard in image.guards} <= {image.indices[d] for d in windows}
    return (channel, windows) if guarded and last.coefficient(tap) == 1 and last.coefficient(row) > 0 else None


def _pad(match: Match, found: _Padding, constants: Mapping[str, Array], made: dict[str, Array]) -> Edit:
    """Return the statements over the image with its border."""
    total, index, image, filters = match.root, match.index, found.image, found.filters
    (c, _), last = image.read.indices[found.channel].terms[0], max(found.windows)
    assert isinstance(c, Var), "checked by the guard"
    row, tap = found.windows[last]
    channels = -(-c.extent // WORD_BYTES) * WORD_BYTES
    run = Var(f"{tap.name}{c.name}", -(-tap.extent * channels // PIECE_BYTES) * PIECE_BYTES)
    axes, places, indices, guards = [], {}, [], []
    for d, place in enumerate(image.read.indices):
        if d == found.channel:
            continue
        reach = place - place.const
        if d == last:
            reach = as_index(row) * (place.coefficient(row) * channels) + as_index(run)
        axis = Var(f"y{d}", reach.bounds()[1] + 1)
        if d == last:
            axis = evolve(axis, extent=-(-axis.extent // PIECE_BYTES) * PIECE_BYTES)
            places[found.channel] = as_index(axis) % channels
        places[d] = (as_index(axis) // channels if d == last else as_index(axis)) + place.const
        axes.append(axis)
        indices.append(reach)
    shape = index.types[image.byte.tensor].shape
    for d, place in places.items():
        guards.append(Guard(place, 0, shape[d]))
    guards = [guard for guard in guards if not guard.always]
    at = tuple(map(as_index, axes))

    def add(tensor: str, kind: str, extents: tuple[int, ...]) -> str:
        return index.add_tensor(f"{tensor}.{kind}", TensorType(index.types[tensor].dtype, extents))

    extents = tuple(axis.extent for axis in axes)
    stored, wide = add(image.byte.tensor, "padded", extents), add(image.read.tensor, "padded", extents)
    inner = substitute_expr(found.source.body, {a: places[d] for d, a in enumerate(found.source.axes)})
    inner = rebuild(inner, lambda leaf: evolve(leaf, guards=tuple(guards)) if _moves(leaf) else leaf)
    body = (
        call("select", InRange(tuple(guards)), inner, image.zero or Const(0, index.types[image.byte.tensor].dtype))
        if guards
        else inner
    )
    store = Statement(stored, tuple(axes), at, body)
    widen = _over(image, Read(stored, at), tuple(axes), wide)
    kept = tuple(i for i in filters.read.indices if i not in (as_index(c), as_index(tap)))
    weights = add(filters.byte.tensor, "padded", (*(i.bounds()[1] + 1 for i in kept), run.extent))
    made[weights] = _filters(constants[filters.byte.tensor], filters.read.indices, c, tap, channels, run.extent)
    named = {as_index(v): i for v, i in zip(filters.made.axes, filters.read.indices, strict=True)}
    own = tuple(v for v in filters.made.axes if named[as_index(v)] in kept)
    element = (*map(as_index, own), as_index(run))
    real = add(filters.read.tensor, "padded", index.types[weights].shape)
    scale = _over(filters, Read(weights, element), (*own, run), real)
    product = Call("mul", (Read(real, (*kept, as_index(run))), Read(wide, tuple(indices))))
    reduce = (*(v for v in total.reduce if v not in (c, tap)), run)
    return {
        found.source: [store],
        image.made: [widen],
        filters.made: [scale],
        total: [evolve(total, body=product, reduce=reduce)],
    }


def _moves(leaf: Expr) -> TypeGuard[Read]:
    return isinstance(leaf, Read) and bool(expr_variables(leaf))


def _over(scaled: _Scaled, byte: Read, axes: tuple[Var, ...], target: str) -> Statement:
    """Return the dequantisation of another byte over other axes."""
    body = rebuild(scaled.made.body, lambda node: byte if node == scaled.byte else node)
    return Statement(target, axes, tuple(map(as_index, axes)), body)


def _filters(array: Array, indices: tuple[Index, ...], c: Var, tap: Var, channels: int, run: int) -> Array:
    """Return filters whose last dim has the channels of each tap side by side, and zeros elsewhere."""
    where = [indices.index(as_index(v)) for v in (tap, c)]
    turned = np.moveaxis(array, where, (-2, -1))
    *kept, taps, _ = turned.shape
    found = np.zeros((*kept, taps, channels), array.dtype)
    found[..., : c.extent] = turned
    flat = found.reshape(*kept, taps * channels)
    return np.pad(flat, [*[(0, 0)] * len(kept), (0, run - taps * channels)])
