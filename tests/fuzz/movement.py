"""Nodes that move or choose elements, and pointwise ones.

They form branches, residual connections, broadcasts and conditions.
"""

from __future__ import annotations

from math import prod

from cuts.ir.types import DType
from hypothesis import strategies as st

from .growth import GREATEST, MAX_ELEMENTS, Growth

#: Functions whose results are about as large as their operand.
GENTLE = (
    "relu",
    "sigmoid",
    "tanh",
    "abs",
    "neg",
    "hard_swish",
    "erf",
    "gelu",
    "leaky_relu",
    "softplus",
    "elu",
    "swish",
    "sin",
    "mish",
)
#: Functions that round nothing.
EXACT = ("relu", "abs", "neg")


def activation(growth: Growth, value: str) -> None:
    """Add a function of one operand."""
    op = growth.pick(GENTLE)
    growth.grow(op, value, exact=op in EXACT)


def clipped_exponential(growth: Growth, value: str) -> None:
    """Add the exponential of a value that the preceding node bounds."""
    growth.grow("exp", growth.grow("clip", value, min=-2.0, max=2.0), bound=8.0)


def gate(growth: Growth, value: str) -> None:
    """Add a value times a function of itself."""
    growth.grow("mul", value, growth.grow("sigmoid", value, bound=1.0), bound=growth.bounds[value])


def residual(growth: Growth, value: str) -> None:
    """Join a value with an earlier broadcastable one, or with its function."""
    shape = growth.shape(value)
    partners = [v for v in growth.values if v != value and _broadcasts(growth.shape(v), shape)]
    other = growth.pick(partners[::-1]) if partners else growth.grow("tanh", value, bound=1.0)
    op = growth.pick(("add", "sub", "mul", "max", "min"))
    both = growth.bounds[value], growth.bounds[other]
    bound = both[0] * both[1] if op == "mul" else sum(both)
    pair = (value, other) if growth.flag() else (other, value)
    growth.grow(
        op if bound < GREATEST else "max",
        *pair,
        exact=op in ("max", "min"),
        bound=min(bound, sum(both)) if op != "mul" else bound,
    )


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    pairs = list(zip(a[::-1], b[::-1], strict=False))
    whole = prod(max(x, y) for x, y in pairs) * prod(a[: len(a) - len(pairs)]) * prod(b[: len(b) - len(pairs)])
    return all(x == y or 1 in (x, y) for x, y in pairs) and whole <= MAX_ELEMENTS


def broadcast(growth: Growth, value: str) -> None:
    """Combine a value with an operand that lacks some of its axes."""
    shape = growth.shape(value)
    other = [d if growth.flag() else 1 for d in shape][growth.number(0, len(shape)) :]
    op = growth.pick(("add", "mul", "sub", "div", "max", "prelu"))
    if op in ("div", "prelu"):
        growth.grow(op, value, growth.positive(*other), bound=growth.bounds[value] * 2)
        return
    operand = growth.operand(*other)
    bound = growth.bounds[value] * 4 if op == "mul" else growth.bounds[value] + 4
    growth.grow(op, *((value, operand) if growth.flag() else (operand, value)), exact=op == "max", bound=bound)


def condition(growth: Growth, value: str) -> None:
    """Choose between two values by an exact comparison.

    Its operands are known to the last bit.
    """
    shape = growth.shape(value)
    left = growth.pick(
        sorted(v for v in growth.exact if _broadcasts(growth.shape(v), shape)) or [growth.source(*shape)]
    )
    test = growth.build.node(
        growth.pick(("greater", "less_or_equal")), left, growth.operand(*(d if growth.flag() else 1 for d in shape))
    )
    other = growth.operand(*(d if growth.flag() else 1 for d in shape))
    if _broadcasts(growth.build.types[test].shape, shape):
        growth.grow(
            "where", test, *((value, other) if growth.flag() else (other, value)), bound=max(4.0, growth.bounds[value])
        )


def position(growth: Growth, value: str) -> None:
    """Find an extremum's index along an axis.

    It is a result or a gather's operand.
    """
    exact = [v for v in growth.values if v in growth.exact and len(growth.shape(v))] or [
        growth.source(*growth.shape(value))
    ]
    chosen = growth.pick(exact[::-1])
    axis = growth.number(0, len(growth.shape(chosen)) - 1)
    found = growth.build.node(growth.pick(("argmax", "argmin")), chosen, axis=axis, keepdims=True)
    if growth.flag():
        growth.grow("gather_elements", chosen, found, axis=axis, exact=True)


def transposition(growth: Growth, value: str) -> None:
    """Permute the axes."""
    growth.grow("transpose", value, perm=tuple(growth.draw(_permutations(len(growth.shape(value))))), exact=True)


def reshaping(growth: Growth, value: str) -> None:
    """Join or divide axes."""
    shape = growth.shape(value)
    size = prod(shape)
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    cut = growth.number(0, len(shape))
    a = growth.pick(divisors)
    b = growth.pick([d for d in divisors if size // a % d == 0])
    options = [
        (prod(shape[:cut]), prod(shape[cut:])),
        (a, size // a),
        (a, b, size // a // b),
        (1, a, b, size // a // b),
    ]
    growth.grow("reshape", value, shape=growth.pick(options), exact=True)


def concatenation(growth: Growth, value: str) -> None:
    """Join values: results of nodes, slices, operands, the same one twice."""
    shape = growth.shape(value)
    axis = growth.number(0, len(shape) - 1)
    fitting = [v for v in growth.values if _fits(growth.shape(v), shape, axis)]
    parts = [value] + [growth.pick([*fitting[::-1], None]) for _ in range(growth.number(1, 2))]
    parts = [
        v if v is not None else growth.operand(*shape[:axis], growth.number(1, 3), *shape[axis + 1 :]) for v in parts
    ]
    parts = list(growth.draw(st.permutations(parts)))
    for _ in range(
        growth.pick((1, 1, 2))
    ):  # the same parts in another order, or only some of them, as dense networks join them
        if sum(prod(growth.shape(p)) for p in parts) <= MAX_ELEMENTS:
            growth.grow("concat", *parts, axis=axis, exact=all(p in growth.exact for p in parts))
        parts = list(growth.draw(st.permutations(parts)))[: growth.number(2, len(parts))]


def growing(growth: Growth, value: str) -> None:
    """Join more and more results along an axis, as dense networks do.

    Each part is computed from the earlier parts.
    """
    axis = growth.number(0, len(growth.shape(value)) - 1)
    op = growth.pick(GENTLE)
    parts = [growth.grow(each, value) for each in (op, growth.pick(GENTLE))]
    for _ in range(growth.number(1, 2)):
        if sum(prod(growth.shape(p)) for p in parts) > MAX_ELEMENTS:
            return
        joined = growth.grow("concat", *parts, axis=axis)
        start = growth.number(0, growth.shape(joined)[axis] - 1)
        part = growth.grow("slice", joined, starts=(start,), ends=(growth.shape(joined)[axis],), axes=(axis,))
        parts.append(growth.grow(op, part))
        parts = growth.pick((parts, parts[1:], parts[::-1]))
    growth.grow("concat", *parts, axis=axis)


def _fits(a: tuple[int, ...], b: tuple[int, ...], axis: int) -> bool:
    return len(a) == len(b) and all(x == y or d == axis for d, (x, y) in enumerate(zip(a, b, strict=True)))


def slicing(growth: Growth, value: str) -> None:
    """Slice one or two axes, with negative steps too, or flip them."""
    shape = growth.shape(value)
    axes = tuple(sorted(growth.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=min(2, len(shape))))))
    ranges = []
    for axis in axes:
        low, high, step = 0, shape[axis], -1
        if not growth.pick((False, False, True)):
            low = growth.number(0, shape[axis] - 1)
            high = growth.number(low + 1, shape[axis])
            step = growth.pick((1, 1, 2, -1, -2))
        ranges.append((low, high, step) if step > 0 else (high - 1, low - 1 if low else -shape[axis] - 1, step))
    starts, ends, steps = (tuple(r[k] for r in ranges) for k in range(3))
    growth.grow("slice", value, starts=starts, ends=ends, axes=axes, steps=steps, exact=True)


def splitting(growth: Growth, value: str) -> None:
    """Divide a value along an axis; later nodes may read the parts."""
    shape = growth.shape(value)
    axis = max(range(len(shape)), key=lambda d: shape[d]) if growth.flag() else growth.number(0, len(shape) - 1)
    if shape[axis] < 2:
        slicing(growth, value)
        return
    first = growth.number(1, shape[axis] - 1)
    for part in growth.build.results("split", value, axis=axis, split=(first, shape[axis] - first)):
        growth.keep(part, (value,), exact=True)


def padding(growth: Growth, value: str) -> None:
    """Pad some axes in every mode, or shift all by one."""
    shape = growth.shape(value)
    mode = growth.pick(("constant", "edge", "shift", "reflect", "wrap", "shift"))
    if mode == "shift":
        axis = max(range(len(shape)), key=lambda d: shape[d])
        moved = growth.pick((1, -1)) if shape[axis] > 1 else 0
        pads = [0] * 2 * len(shape)
        pads[axis], pads[axis + len(shape)] = moved, -moved
        growth.grow("pad", value, pads=tuple(pads), exact=True)
        return
    most = [2 if mode in ("constant", "edge") else min(2, d - 1) for d in shape]
    pads = tuple(growth.pick((0, growth.number(0, m))) for m in most * 2)
    if prod(d + a + b for d, a, b in zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)) <= MAX_ELEMENTS:
        more = {"value": growth.pick((0.0, 2.5))} if mode == "constant" else {}
        growth.grow("pad", value, pads=pads, mode=mode, exact=True, **more)


def repetition(growth: Growth, value: str) -> None:
    """Repeat a value: as a whole, or along axes of one element."""
    shape = growth.shape(value)
    room = max(1, MAX_ELEMENTS // prod(shape))
    if 1 in shape and growth.flag():
        wanted = tuple(growth.number(1, min(4, room)) if d == 1 else d for d in shape)
        if prod(wanted) <= MAX_ELEMENTS:
            growth.grow("expand", value, shape=wanted, exact=True)
        return
    axis = growth.number(0, len(shape) - 1)
    growth.grow("tile", value, repeats=tuple(min(2, room) if d == axis else 1 for d in range(len(shape))), exact=True)


def gathering(growth: Growth, value: str) -> None:
    """Choose slices or elements by constant or input integers."""
    shape = growth.shape(value)
    axis = growth.number(0, len(shape) - 1)
    if growth.flag():
        lengths = tuple(growth.number(1, d) for d in shape)
        growth.grow("gather_elements", value, growth.places(shape[axis], *lengths), axis=axis, exact=True)
        return
    count = growth.pick(((3,), (2, 2), ()))
    if prod(shape) // shape[axis] * prod(count) > MAX_ELEMENTS:
        return
    known = shape[axis] < 2 or growth.flag()
    places = growth.places(shape[axis], *count) if known else growth.build.input(count, DType.I64)
    growth.grow("gather", value, places, axis=axis, exact=True)


def framing(growth: Growth, value: str) -> None:
    """Cut overlapping stretches out of the last axis but one."""
    *outer, length, width = growth.shape(value)
    stretch = growth.number(1, min(length, 5))
    step = growth.number(1, 3)
    if prod(outer) * ((length - stretch) // step + 1) * stretch * width <= MAX_ELEMENTS:
        growth.grow("frames", value, length=stretch, step=step, exact=True)


def movements(growth: Growth, value: str) -> None:
    """Move elements several times in a row.

    Only the last result is read.
    """
    for _ in range(growth.number(2, 3)):
        rank = len(growth.shape(value))
        growth.pick((transposition, reshaping, turning) if rank else (reshaping,))(growth, value)
        value = growth.values[-1]


def turning(growth: Growth, value: str) -> None:
    """Turn one axis round."""
    axis = growth.number(0, len(growth.shape(value)) - 1)
    growth.grow(
        "slice", value, starts=(-1,), ends=(-growth.shape(value)[axis] - 1,), axes=(axis,), steps=(-1,), exact=True
    )


def triangle(growth: Growth, value: str) -> None:
    """Keep the upper or lower triangle of matrices."""
    growth.grow("trilu", value, upper=growth.flag(), k=growth.number(-1, 1), exact=True)


def conversion(growth: Growth, value: str) -> None:
    """Convert to another type and back.

    Half precision loses digits equally in both worlds only at the end.
    """
    exact = growth.pick([v for v in growth.values if v in growth.exact] or [growth.source(*growth.shape(value))])
    whole = growth.build.node("cast", exact, to="i32")
    growth.grow("cast", whole, to=str(growth.dtype), bound=growth.bounds[exact], exact=True)


def _permutations(rank: int) -> st.SearchStrategy[list[int]]:
    return st.permutations(range(rank))
