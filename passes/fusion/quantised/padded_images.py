"""Stores images of few channels with their border, in whole words.

A convolution of three channels reads three bytes of each tap, which lie anywhere: threads load and pack them one by
one. An image that is rounded to bytes for this convolution alone is stored with its border and with channels that fill
words, and neighbours become channels, too, so that copies move 16 bytes. Places share their neighbours. The filter has
zeros at the further places:

    q[n, c, y, x] = u8(round(i[n, c, y, x]) + z);   d[n, c, y, x] = (f32(q[n, c, y, x]) - z) * t
    y[n, k, p, o] = sum_{c < 3, r < 7, s < 7} v[k, c, r, s] * d[n, c, 2*p + r - 3, 2*o + s - 3 or 0]
      ->   u[n, y, x, e < 16] = u8(round(i[n, e % 4, y - 3, 2*x + e // 4 - 3]) + z) or z;   f = (f32(u) - z) * t
           y[n, k, p, o] = sum_{r < 7, s < 2, e < 16} w[k, r, s, e] * f[n, 2*p + r, o + 2*s, e]

A scaled byte is finite, so that a product with 0 is 0. Where zeros are rounded to the zero point, as they always are,
reads of zeros beyond the border take the place of a condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from attrs import evolve, frozen

from ....ir import (
    WIDEST_BYTES,
    Array,
    Call,
    Const,
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
from ...statements import Edit, Match, Programs, RewriteRule, anything, is_plain, reduction, rewrite
from .constant_values import is_value_at_zeros
from .scaled_factors import ScaledFactor, find_scaled_factor, fixed_axes, is_plain_map

#: Bytes of a word, and fewest channels whose bytes copies move at once.
WORD_BYTES, MANY_CHANNELS = 4, 16
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
class _Padding:
    """A convolution with its factors, the definition of the image's bytes, and its channels.

    `windows` has the axes of rows and taps by dim of the image; channels are merged with the last of them.
    """

    image: ScaledFactor
    filters: ScaledFactor
    source: Statement
    channel: int
    c: Var
    windows: Mapping[int, tuple[Var, Var]]

    @property
    def last(self) -> tuple[int, Var, Var]:
        """The last window dim, with its rows and taps."""
        return max(self.windows), *self.windows[max(self.windows)]

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Stored channels, the step of rows, and neighbours that become channels."""
        d, row, _ = self.last
        channels, step = -(-self.c.extent // WORD_BYTES) * WORD_BYTES, self.image.read.indices[d].coefficient(row)
        return channels, step, -(-WIDEST_BYTES // (channels * step)) * step

    @property
    def reduced(self) -> tuple[Var, Var]:
        """The axes of taps and of their channels."""
        (channels, _, near), tap = self.sizes, self.last[2]
        return Var(tap.name, -(-tap.extent // near)), Var(self.c.name, near * channels)


def _find(match: Match, constants: Mapping[str, Array]) -> _Padding | None:
    total, index = match.root, match.index
    parts = factors(total.body)
    if len(parts) != 2 or not is_plain(total) or prod(v.extent for v in (*total.axes, *total.reduce)) < MIN_PRODUCTS:
        return None
    for first, second in (parts, parts[::-1]):
        image, filters = find_scaled_factor(first, total, index), find_scaled_factor(second, total, index)
        if image is None or filters is None or filters.read.guards:
            continue
        if filters.byte.tensor not in constants:
            continue
        source = index.single_definition(image.byte.tensor)
        if source is None or not is_plain_map(source) or not index.is_only_read_by(source.target, [image.made]):
            continue
        if any(read.guards for read in reads(source.body)) or fixed_axes(image.made, image.byte) or filters.zero:
            continue
        found = _windows(image.read, filters.read, total)
        if found is not None:
            return _Padding(image, filters, source, *found)
    return None


def _windows(image: Read, filters: Read, total: Statement) -> tuple[int, Var, dict[int, tuple[Var, Var]]] | None:
    """Return the dim of the channels, and the axes of rows and taps of the window dims.

    None unless a filter has an element for each tap and channel, and the border is no other than that of the windows.
    """
    channel, windows, reduced = None, dict[int, tuple[Var, Var]](), {*total.reduce}
    for d, place in enumerate(image.indices):
        moving = [v for v, _ in place.terms if isinstance(v, Var)]
        taps = [v for v in moving if v in reduced]
        if len(moving) == len(place.terms) == 2 and len(taps) == 1:
            windows[d] = next(v for v in moving if v not in reduced), taps[0]
        elif len(taps) == 1 and place == as_index(taps[0]) and channel is None:
            channel = d
        elif taps or place.const or len(moving) != 1 or len(place.terms) != 1:
            return None
    plain = all(not i.const and [f for _, f in i.terms] == [1] for i in filters.indices)
    if channel is None or not windows or not plain:
        return None
    (c, _), (row, tap), last = image.indices[channel].terms[0], windows[max(windows)], image.indices[max(windows)]
    needed, own = {c, *(v for _, v in windows.values())}, {v for i in filters.indices for v, _ in i.terms}
    few = isinstance(c, Var) and c.extent < MANY_CHANNELS and c.extent % WORD_BYTES != 0
    bordered = {guard.index for guard in image.guards} <= {image.indices[d] for d in windows}
    dense = last.coefficient(tap) == 1 and last.coefficient(row) > 0
    found = few and bordered and dense and reduced == needed and needed <= own
    return (channel, c, windows) if found and isinstance(c, Var) else None


def _pad(match: Match, found: _Padding, constants: Mapping[str, Array], made: dict[str, Array]) -> Edit:
    """Return the statements over the image with its border."""
    total, index, image, filters = match.root, match.index, found.image, found.filters
    axes, places, indices = _lay_out(found)
    at, shape = tuple(map(as_index, axes)), index.types[image.byte.tensor].shape
    guards = tuple(g for d, place in places.items() if not (g := Guard(place, 0, shape[d])).always)

    def add(tensor: str, extents: tuple[int, ...]) -> str:
        return index.add_tensor(f"{tensor}.padded", TensorType(index.types[tensor].dtype, extents))

    stored, wide = (add(t, tuple(axis.extent for axis in axes)) for t in (image.byte.tensor, image.read.tensor))
    inner = substitute_expr(found.source.body, {a: places[d] for d, a in enumerate(found.source.axes)})
    inner = rebuild(inner, lambda e: evolve(e, guards=guards) if isinstance(e, Read) and expr_variables(e) else e)
    outside = image.zero or Const(0, index.types[stored].dtype)
    same = is_value_at_zeros(outside, found.source, index.types, constants)
    store = Statement(stored, axes, at, inner if same else call("select", InRange(guards), inner, outside))
    merged, new = (found.c, found.last[2]), found.reduced
    kept = tuple(i for i in filters.read.indices if i not in map(as_index, merged))
    weights = add(filters.byte.tensor, (*(i.bounds()[1] + 1 for i in kept), *(v.extent for v in new)))
    made[weights] = _filters(constants[filters.byte.tensor], found)
    own = tuple(v for v, i in zip(filters.made.axes, filters.read.indices, strict=True) if i in kept)
    real = add(filters.read.tensor, index.types[weights].shape)
    product = Call("mul", (Read(real, (*kept, *map(as_index, new))), Read(wide, indices)))
    reduce = (*(v for v in total.reduce if v not in merged), *new)
    return {
        found.source: [store],
        image.made: [_over(image, Read(stored, at), axes, wide)],
        filters.made: [_over(filters, Read(weights, tuple(map(as_index, (*own, *new)))), (*own, *new), real)],
        total: [evolve(total, body=product, reduce=reduce)],
    }


def _lay_out(found: _Padding) -> tuple[tuple[Var, ...], dict[int, Index], tuple[Index, ...]]:
    """Return the axes of the padded image, an element's place in the image by dim, and the element of a row and tap."""
    axes, places, indices = list[Var](), dict[int, Index](), list[Index]()
    (last, row, _), (tap, channel), (channels, step, near) = found.last, found.reduced, found.sizes
    for d, place in enumerate(found.image.read.indices):
        if d == found.channel:
            continue
        reach = as_index(row) + as_index(tap) * (near // step) if d == last else place - place.const
        axes.append(Var(f"y{d}", reach.bounds()[1] + 1))
        places[d] = as_index(axes[-1]) + place.const
        indices.append(reach)
    element = Var(f"y{found.channel}", channel.extent)
    places[last] = as_index(axes[[*places].index(last)]) * step + as_index(element) // channels
    places[last] += found.image.read.indices[last].const
    places[found.channel] = as_index(element) % channels
    return (*axes, element), places, (*indices, as_index(channel))


def _over(scaled: ScaledFactor, byte: Read, axes: tuple[Var, ...], target: str) -> Statement:
    """Return the dequantisation of another byte over other axes."""
    body = rebuild(scaled.made.body, lambda node: byte if node == scaled.byte else node)
    return Statement(target, axes, tuple(map(as_index, axes)), body)


def _filters(array: Array, found: _Padding) -> Array:
    """Return filters whose last dims are taps, and channels side by side, with zeros elsewhere."""
    where = [found.filters.read.indices.index(as_index(v)) for v in (found.last[2], found.c)]
    turned = np.moveaxis(array, where, (-2, -1))
    *kept, taps, c = turned.shape
    (tap, channel), (channels, _, near) = (v.extent for v in found.reduced), found.sizes
    missing = [*[(0, 0)] * len(kept), (0, tap * near - taps), (0, channels - c)]
    return np.pad(turned, missing).reshape(*kept, tap, channel)
