"""Kinds of nodes with windows over spatial axes: convolutions, pooling, resizing."""

from __future__ import annotations

from math import prod

from .growth import MAX_ELEMENTS, Growth
from .movement import turning


def _taps(growth: Growth, size: int) -> tuple[int, int]:
    """Draw a window that fits an axis, and its dilation."""
    window = growth.number(1, min(3, size))
    return window, growth.number(1, 2) if size > 2 * (window - 1) else 1


def _windows(growth: Growth, spatial: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    drawn = [_taps(growth, size) for size in spatial]
    return tuple(w for w, _ in drawn), tuple(d for _, d in drawn)


def convolution(growth: Growth, value: str) -> None:
    """Add a convolution over 1 to 3 spatial axes.

    It is dense, grouped or depthwise.
    """
    _, channels, *spatial = growth.shape(value)
    kernel, dilations = _windows(growth, tuple(spatial))
    groups = growth.pick([g for g in (1, 1, channels, 2, 3) if channels % g == 0])
    filters = groups * growth.pick((1, 2, 3) if groups > 1 else (1, 3, 4, 8, 5))
    strides = tuple(growth.pick((1, 1, 2, 3)) for _ in spatial)
    pads = tuple(growth.pick((0, 1, 2)) for _ in range(2 * len(spatial)))
    terms = channels // groups * prod(kernel)
    operands = [value, growth.weight(terms, filters, channels // groups, *kernel)]
    operands += [growth.operand(filters)] if growth.flag() else []
    bound = growth.bounds[value] * growth.bounds[operands[1]] / 2 * terms**0.5 + 4
    made = growth.grow("conv", *operands, bound=bound, strides=strides, pads=pads, dilations=dilations, groups=groups)
    if growth.flag():
        scale = growth.constant(filters, *(1 for _ in spatial))
        growth.grow(growth.pick(("mul", "add")), made, scale, bound=bound * 4)


def separable(growth: Growth, value: str) -> None:
    """Add a separable convolution, as in mobile networks.

    It consists of a depthwise convolution, a rotation, and a dense convolution of single pixels.
    """
    _, channels, *spatial = growth.shape(value)
    kernel, dilations = _windows(growth, tuple(spatial))
    pads = tuple(d * (k - 1) // 2 for k, d in zip(kernel, dilations, strict=True)) * 2
    weight = growth.weight(prod(kernel), channels, 1, *kernel)
    between = growth.grow(
        "conv", value, weight, pads=pads, dilations=dilations, groups=channels, bound=growth.bounds[value] * 4
    )
    if growth.flag():
        between = growth.grow("relu", between)
    if growth.pick((False, False, True)):
        turning(growth, between)
        between = growth.values[-1]
    filters = growth.pick((1, 2, 6))
    growth.grow(
        "conv",
        between,
        growth.weight(channels, filters, channels, *(1 for _ in kernel)),
        bound=growth.bounds[value] * 8,
    )


def transposed_convolution(growth: Growth, value: str) -> None:
    """Add a transposed convolution with strides."""
    _, channels, *spatial = growth.shape(value)
    kernel, dilations = _windows(growth, tuple(spatial))
    groups = growth.pick([g for g in (1, channels) if channels <= 4 or g == 1])
    strides = tuple(growth.pick((1, 2)) for _ in spatial)
    # No pad takes away a whole result.
    pads = tuple(min(1, (d * (k - 1)) // 2) if growth.flag() else 0 for k, d in zip(kernel, dilations, strict=True)) * 2
    weight = growth.weight(channels // groups * prod(kernel), channels, growth.pick((1, 2, 3)), *kernel)
    growth.grow(
        "conv_transpose",
        value,
        weight,
        strides=strides,
        pads=pads,
        dilations=dilations,
        groups=groups,
        bound=growth.bounds[value] * 4,
    )


def pooling(growth: Growth, value: str) -> None:
    """Add pooling over windows, or over everything."""
    _, _, *spatial = growth.shape(value)
    kernel, dilations = _windows(growth, tuple(spatial))
    op = growth.pick(("max_pool", "average_pool", "global_average_pool", "global_max_pool", "lp_pool"))
    if op.startswith("global"):
        growth.grow(op, value, exact=op == "global_max_pool")
        return
    pads = tuple(growth.number(0, min(1, k - 1)) for k in kernel * 2)
    strides = tuple(growth.pick((1, 2)) for _ in spatial)
    more = {"count_include_pad": growth.flag()} if op == "average_pool" else {}
    ceil = growth.flag()
    growth.grow(
        op,
        value,
        kernel_shape=kernel,
        strides=strides,
        dilations=dilations,
        pads=pads,
        ceil_mode=ceil,
        exact=op == "max_pool",
        **more,
    )


def resizing(growth: Growth, value: str) -> None:
    """Resize the spatial axes, by nearest elements or interpolation."""
    batch, channels, *spatial = growth.shape(value)
    room = max(1, MAX_ELEMENTS // (batch * channels))
    twice = growth.flag()
    wanted = [2 * size if twice else size + growth.number(-2, 3) for size in spatial]
    sizes = tuple(max(1, min(size, int(room ** (1 / len(spatial))))) for size in wanted)
    mode = growth.pick(("half_pixel", "asymmetric", "align_corners"))
    op = growth.pick(("resize_nearest", "resize_linear"))
    more = {"nearest_mode": growth.pick(("round_prefer_floor", "floor", "ceil"))} if op == "resize_nearest" else {}
    growth.grow(
        op,
        value,
        sizes=(batch, channels, *sizes),
        coordinate_transformation_mode=mode,
        exact=op == "resize_nearest",
        **more,
    )
    if twice:
        pooling(growth, growth.values[-1])


def shuffling(growth: Growth, value: str) -> None:
    """Move blocks of channels to blocks of pixels, or back.

    Where neither fits, it is a plain permutation.
    """
    _, channels, *spatial = growth.shape(value)
    mode = growth.pick(("DCR", "CRD"))
    if len(spatial) == 2 and channels % 4 == 0:
        growth.grow("depth_to_space", value, blocksize=2, mode=mode, exact=True)
    elif len(spatial) == 2 and all(size % 2 == 0 for size in spatial):
        growth.grow("space_to_depth", value, blocksize=2, mode=mode, exact=True)
    else:
        growth.grow("transpose", value, exact=True)


def block(growth: Growth, value: str) -> None:
    """Add a residual block of two shape-preserving convolutions.

    A norm and an activation stand between them.
    """
    _, channels, *spatial = growth.shape(value)
    kernel = tuple(growth.pick((3, 1)) for _ in spatial)
    width = growth.pick((1, 2, channels))
    pads = tuple(k // 2 for k in kernel) * 2
    made = growth.grow("conv", value, growth.weight(channels * prod(kernel), width, channels, *kernel), pads=pads)
    if growth.flag():
        statistics = [growth.constant(width) if place in (1, 2) else growth.positive(width) for place in range(4)]
        made = growth.grow("batch_norm", made, *statistics, bound=growth.bounds[value] * 4 + 4)
    made = growth.grow(growth.pick(("relu", "tanh", "hard_swish")), made)
    made = growth.grow(
        "conv",
        made,
        growth.weight(width * prod(kernel), channels, width, *kernel),
        pads=pads,
        bound=growth.bounds[value] * 8,
    )
    if growth.flag():
        growth.grow("add", made, value, bound=growth.bounds[made] + growth.bounds[value])


def padded_windows(growth: Growth, value: str) -> None:
    """Add a padded value or function of it, and windows over both."""
    shape = growth.shape(value)
    frame = (0, 0, *(growth.pick((0, 1, 2)) for _ in shape[2:]))
    made = value
    if growth.flag():
        made = growth.grow("add", value, growth.positive(1), bound=growth.bounds[value] + 2)
    elif growth.flag():
        made = growth.grow(growth.pick(("sigmoid", "relu", "softplus", "tanh")), value)
    if prod(d + 2 * f for d, f in zip(shape, frame, strict=True)) <= MAX_ELEMENTS:
        made = growth.grow("pad", made, pads=frame * 2, value=growth.pick((0.0, 1.5, -2.0)))
    growth.pick((convolution, pooling))(growth, made)


def folded_windows(growth: Growth, value: str) -> None:
    """Join the spatial axes, or divide the last one, and add windows."""
    batch, channels, *spatial = growth.shape(value)
    options = [(batch, channels, prod(spatial)), (batch, channels * spatial[0], prod(spatial[1:]))]
    options += [
        (batch, channels, *spatial[:-1], d, spatial[-1] // d)
        for d in (2, 4)
        if spatial[-1] % d == 0 and len(spatial) < 3
    ]
    made = growth.grow(growth.pick(("relu", "neg", "sin")), value)
    made = growth.grow("reshape", made, shape=growth.pick(options))
    if growth.flag():
        growth.pick((convolution, pooling))(growth, made)
    else:
        sizes = growth.shape(made)[2:]
        growth.grow("max_pool", made, kernel_shape=tuple(min(3, n) for n in sizes), strides=(2,) * len(sizes))
