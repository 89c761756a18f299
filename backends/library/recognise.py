"""Recognition of groups that a vendor's library computes.

They are plain matrix products and plain convolutions, recognised from their access maps. A group qualifies if it is one
segment with one sum of products of two tensors, whose value is stored unchanged. The operation that the group came
from, and the number and names of its axes, do not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from math import prod

from attrs import frozen

from ...ir import Call, DType, FusedGroup, Guard, Index, Read, Storage, Var, floordiv, is_affine, linearise, variables

Storages = Mapping[str, Storage]


@frozen
class Matrix:
    """Matrix, or a batch of them, inside a tensor.

    It has the offset, and the strides between matrices, rows and columns, in elements.
    """

    tensor: str
    offset: int
    batch: int
    row: int
    column: int

    @property
    def transposed(self) -> Matrix:
        """Matrix with rows and columns exchanged."""
        return Matrix(self.tensor, self.offset, self.batch, self.column, self.row)


@frozen
class Product:
    """Product of matrices, or of batches of them.

    `y[b, m, n] = sum over k of a[b, m, k] * b[b, k, n]`.

    An operand that the whole batch shares has stride 0 between matrices.
    """

    batch: int
    m: int
    n: int
    k: int
    a: Matrix
    b: Matrix
    y: Matrix


@frozen
class Block:
    """Tensor of a convolution: sizes and strides of its dims.

    Dims are item, channel and spatial ones; strides are in elements.
    """

    tensor: str
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


@frozen
class Convolution:
    """Convolution with its tensors and its geometry per spatial dim.

    The image is [N, C, ...], the filter [K, C / groups, ...], the result [N, K, ...].
    """

    image: Block
    filter: Block
    result: Block
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of independent groups of channels."""
        return self.image.sizes[1] // self.filter.sizes[1]


@frozen
class _Sum:
    """The one sum of products of a group."""

    left: Read
    right: Read
    reduced: tuple[Var, ...]
    axes: tuple[Var, ...]
    target: str
    write: tuple[Index, ...]


def _sum_of_products(group: FusedGroup) -> _Sum | None:
    """Return the parts of a group that is only a sum of products of two f32 tensors, stored unchanged."""
    if len(group.segments) != 1 or group.constants:
        return None
    (segment,) = group.segments
    if len(segment.reductions) != 1 or len(segment.outputs) != 1 or segment.outputs[0].extra:
        return None
    (reduction,), (output,) = segment.reductions, segment.outputs
    body = reduction.body
    if reduction.combine != "sum" or reduction.along or not isinstance(body, Call) or body.fn != "mul":
        return None
    left, right = body.args
    stored = isinstance(output.body, Read) and output.body.tensor == reduction.name and not output.body.guards
    if not (isinstance(left, Read) and isinstance(right, Read) and stored):
        return None
    if any(group.tensors[t].dtype is not DType.F32 for t in (left.tensor, right.tensor, output.tensor)):
        return None
    return _Sum(left, right, reduction.reduce, segment.axes, output.tensor, output.write)


def _steps(group: FusedGroup, storages: Storages, tensor: str) -> tuple[int, ...]:
    return storages[tensor].strides if tensor in storages else group.tensors[tensor].strides


# ---- products of matrices


def find_product(group: FusedGroup, storages: Storages | None = None) -> Product | None:
    """Return the matrix product that a group computes, or None.

    Axes that advance together through both tensors that they index become one. Of the rest one may remain: it counts
    the matrices of a batch.
    """
    found = _sum_of_products(group)
    if found is None or found.left.guards or found.right.guards:
        return None
    places = storages or {}
    accesses = [
        (found.left.tensor, found.left.indices),
        (found.right.tensor, found.right.indices),
        (found.target, found.write),
    ]
    addresses = [linearise(indices, _steps(group, places, tensor)) for tensor, indices in accesses]
    if not all(is_affine(address) for address in addresses):
        return None
    axes = [
        (v.extent, tuple(a.coefficient(v) for a in addresses)) for v in (*found.axes, *found.reduced) if v.extent > 1
    ]
    classes = [_class_of(steps) for _, steps in axes]
    if None in classes:
        return None
    runs = {c: _merge_axes([axis for axis, kind in zip(axes, classes, strict=True) if kind == c]) for c in "mnkb"}
    batch = runs.pop("b") + [run for c in "mn" for run in runs[c][:-1]]  # the innermost run of a class stays
    if len(batch) > 1 or len(runs["k"]) > 1:
        return None
    ends = {c: runs[c][-1] if runs[c] else (1, (0, 0, 0)) for c in "mnk"}
    size, steps = batch[0] if batch else (1, (0, 0, 0))
    (m, at_m), (n, at_n), (k, at_k) = ends["m"], ends["n"], ends["k"]
    names = [tensor for tensor, _ in accesses]
    a = Matrix(names[0], addresses[0].const, steps[0], at_m[0], at_k[0])
    b = Matrix(names[1], addresses[1].const, steps[1], at_k[1], at_n[1])
    y = Matrix(names[2], addresses[2].const, steps[2], at_m[2], at_n[2])
    return Product(size, m, n, k, a, b, y)


def _class_of(steps: tuple[int, ...]) -> str | None:
    """Return m, n, k or b (batch) of an axis by which of left, right and result it moves through."""
    if any(s < 0 for s in steps):
        return None
    return {(True, False, True): "m", (False, True, True): "n", (True, True, False): "k", (True, True, True): "b"}.get(
        (steps[0] > 0, steps[1] > 0, steps[2] > 0)
    )


_Run = tuple[int, tuple[int, ...]]


def _merge_axes(axes: Sequence[_Run]) -> list[_Run]:
    """Join axes of one class that continue each other in every tensor; the outermost first."""
    runs: list[_Run] = []
    for extent, steps in sorted(axes, key=lambda axis: sum(axis[1]), reverse=True):
        if runs and all(outer == inner * extent for outer, inner in zip(runs[-1][1], steps, strict=True)):
            runs[-1] = (runs[-1][0] * extent, steps)
        else:
            runs.append((extent, steps))
    return runs


# ---- convolutions


def find_convolution(group: FusedGroup, storages: Storages | None = None) -> Convolution | None:
    """Return the convolution that a group computes, or None.

    The filter's dims may be stored in any order.
    """
    found = _sum_of_products(group)
    if found is None:
        return None
    rank = len(found.write)
    if rank < 3 or any(len(read.indices) != rank for read in (found.left, found.right)):
        return None
    candidates = ((image, weights, order) for image, weights in ((found.left, found.right), (found.right, found.left))
                  for order in permutations(range(rank)))  # fmt: skip
    for image, weights, order in candidates:
        if (
            not weights.guards
            and (convolution := _convolution(group, found, image, weights, order, storages or {})) is not None
        ):
            return convolution
    return None


def _convolution(
    group: FusedGroup, found: _Sum, image: Read, weights: Read, order: tuple[int, ...], storages: Storages
) -> Convolution | None:
    sizes = group.tensors[image.tensor].shape
    filter_sizes = tuple(group.tensors[weights.tensor].shape[d] for d in order)
    taps = tuple(weights.indices[d] for d in order)
    result = group.tensors[found.target].shape
    if result[0] != sizes[0] or sizes[1] % filter_sizes[1] or filter_sizes[0] != result[1]:
        return None
    groups = sizes[1] // filter_sizes[1]
    if filter_sizes[0] % groups or not _in_order(found, taps, filter_sizes, result):
        return None
    channel = floordiv(found.write[1], filter_sizes[0] // groups) * filter_sizes[1] + taps[1]
    if image.indices[0] != found.write[0] or taps[0] != found.write[1] or image.indices[1] != channel:
        return None
    windows = [
        _window(image, d, found.write[d], taps[d], sizes[d], result[d], filter_sizes[d]) for d in range(2, len(sizes))
    ]
    spatial = {image.indices[d].text for d in range(2, len(sizes))}
    if any(w is None for w in windows) or any(g.index.text not in spatial for g in image.guards) or image.fill != 0:
        return None
    steps = _steps(group, storages, weights.tensor)
    strides, dilations, begin, end = zip(*(w for w in windows if w is not None), strict=True)
    return Convolution(
        Block(image.tensor, sizes, _steps(group, storages, image.tensor)),
        Block(weights.tensor, filter_sizes, tuple(steps[d] for d in order)),
        Block(found.target, result, _steps(group, storages, found.target)),
        strides, dilations, begin, end,
    )  # fmt: skip


def _in_order(found: _Sum, taps: Sequence[Index], filter_sizes: Sequence[int], result: Sequence[int]) -> bool:
    """Return whether the axes cover the result once, and the reduced ones a filter."""
    whole = all(_covers(index, extent) for index, extent in zip(found.write, result, strict=True))
    reduced = all(_covers(index, extent) for index, extent in zip(taps[1:], filter_sizes[1:], strict=True))
    own = _disjoint(found.write, found.axes) and _disjoint(taps[1:], found.reduced)
    return whole and reduced and own


def _covers(index: Index, extent: int) -> bool:
    """Return whether an index takes every value below `extent` exactly once, like digits of a number."""
    if not is_affine(index) or index.const:
        return False
    digits: Iterator[tuple[int, int]] = iter(
        sorted((step, primary.extent) for primary, step in index.terms if isinstance(primary, Var))
    )
    place = 1
    for step, size in digits:
        if step != place:
            return False
        place *= size
    return place == extent


def _disjoint(indices: Sequence[Index], axes: Sequence[Var]) -> bool:
    """Return whether each axis is used by exactly one of the indices."""
    used = [v for index in indices for v in variables(index)]
    return len(used) == len(set(used)) and set(used) == {a for a in axes if a.extent > 1}


def _window(
    image: Read, dim: int, place: Index, tap: Index, size: int, outputs: int, taps: int
) -> tuple[int, int, int, int] | None:
    """Return stride, dilation and padding at both ends of one spatial dim."""
    index = image.indices[dim]
    stride, dilation = _factor(index, place), _factor(index, tap)
    begin = -index.const
    if stride < 1 or dilation < 1 or begin < 0 or index != place * stride + tap * dilation - begin:
        return None
    low, high = index.bounds()
    guards = [g for g in image.guards if g.index == index]
    if any(g != Guard(index, 0, size) for g in guards) or (not guards and (low < 0 or high >= size)):
        return None
    span = dilation * (taps - 1) + 1
    end = max(0, stride * (outputs - 1) + span - begin - size)
    if (size + begin + end - span) // stride + 1 != outputs:
        return None
    return stride, dilation, begin, end


def _factor(index: Index, part: Index) -> int:
    """Return the multiplicity of a part in an index; 1 where the part is constant."""
    for primary, step in part.terms:
        return index.coefficient(primary) // step
    return 1


def flops(work: Product | Convolution) -> int:
    """Return the operations of a product or a convolution."""
    if isinstance(work, Product):
        return 2 * work.batch * work.m * work.n * work.k
    return 2 * prod(work.result.sizes) * prod(work.filter.sizes[1:])
