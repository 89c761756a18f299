"""Random graphs of declared operations, weighted to networks' typical chains.

Shapes are valid by construction: each kind of node draws attributes that fit its operand, and the declarations infer
the results.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from attrs import frozen
from cuts.ir.graph import Graph
from cuts.ir.types import DType
from hypothesis import strategies as st

from . import element_types as typed
from . import matrices, movement, recurrent, scattering, windows
from .growth import GREATEST, MAX_ELEMENTS, Builder, Growth


@frozen
class Kind:
    """Kind of node: frequency, ranks of its operand, and generator."""

    weight: int
    ranks: range
    add: Callable[[Growth, str], None]


_IMAGES, _MATRICES, _AXES, _ALL = range(3, 6), range(2, 6), range(1, 9), range(9)
KINDS = (
    Kind(6, _ALL, movement.activation), Kind(6, _IMAGES, windows.convolution), Kind(3, _IMAGES, windows.separable),
    Kind(5, _IMAGES, windows.block), Kind(2, _IMAGES, windows.padded_windows), Kind(2, _IMAGES, windows.folded_windows),
    Kind(3, _IMAGES, windows.pooling), Kind(2, _IMAGES, windows.resizing),
    Kind(2, _IMAGES, windows.shuffling), Kind(2, _IMAGES, windows.transposed_convolution),
    Kind(3, _MATRICES, matrices.product), Kind(3, _MATRICES, matrices.dense_layer),
    Kind(2, _MATRICES, matrices.perceptron), Kind(5, _MATRICES, matrices.normalisation),
    Kind(3, _AXES, matrices.reduction), Kind(1, range(2, 5), matrices.attention),
    Kind(2, _MATRICES, matrices.square_of_rows), Kind(1, _AXES, matrices.cumulation), Kind(5, _ALL, movement.residual),
    Kind(4, _ALL, movement.broadcast), Kind(4, _AXES, movement.concatenation), Kind(4, _AXES, movement.slicing),
    Kind(2, _AXES, movement.splitting), Kind(3, _AXES, movement.transposition), Kind(3, _ALL, movement.reshaping),
    Kind(3, _AXES, movement.padding), Kind(3, _AXES, movement.repetition), Kind(2, _AXES, movement.gathering),
    Kind(2, _MATRICES, movement.framing), Kind(3, _AXES, movement.movements), Kind(3, _AXES, movement.growing),
    Kind(2, _AXES, matrices.statistics), Kind(3, _AXES, matrices.branches), Kind(2, range(4, 5), matrices.rotation),
    Kind(1, _ALL, movement.gate), Kind(2, _MATRICES, matrices.computed_factors), Kind(2, _AXES, matrices.border),
    Kind(1, _ALL, movement.clipped_exponential), Kind(1, _ALL, movement.condition),
    Kind(2, _AXES, movement.position), Kind(1, _MATRICES, movement.triangle), Kind(1, _ALL, movement.conversion),
    Kind(9, _ALL, typed.stretch), Kind(3, _MATRICES, recurrent.recurrence), Kind(3, _MATRICES,
    recurrent.declare_recurrence),
    Kind(3, _AXES, scattering.scattering), Kind(1, _AXES, scattering.summing),
)  # fmt: skip

_SIZES = (1, 2, 3, 4, 5, 7, 8, 11)
_LONG_EXTENTS = (16, 33, 64, 70)
_WIDE_EXTENTS = (16, 32, 24, 19)


@st.composite
def graphs(draw: st.DrawFn, most: int = 8) -> Graph:
    """Draw a graph of up to `most` kinds of nodes.

    It has branches, shared intermediates and one or several outputs.
    """
    growth = Growth(draw, Builder(draw(st.integers(0, 2**16))))
    growth.dtype = growth.pick((DType.F32,) * 9 + (DType.F64,))
    growth.values.append(growth.source(*_shape(growth)))
    for _ in range(growth.number(3, most)):
        _extend(growth)
    if not growth.build.nodes:
        movement.activation(growth, growth.values[-1])
    return growth.graph()


def _shape(growth: Growth) -> tuple[int, ...]:
    """Draw the shape that a graph begins with: an image, a sequence or a matrix; one axis may be long."""
    rank = growth.pick((4, 4, 4, 3, 2, 5, 1))
    shape = [growth.pick(_SIZES) for _ in range(rank)]
    if growth.pick((False, False, True)):
        shape[growth.number(0, rank - 1)] = growth.pick(_LONG_EXTENTS)
    elif growth.pick((False, False, True)):
        shape = [shape[0]] * rank
    elif rank in (2, 3) and growth.flag():
        shape[-2:] = growth.pick(_WIDE_EXTENTS), growth.pick(_WIDE_EXTENTS)
    while prod(shape) > MAX_ELEMENTS // 4:
        widest = max(range(rank), key=lambda d: shape[d])
        shape[widest] = shape[widest] // 2 + 1
    return tuple(shape)


def _extend(growth: Growth) -> None:
    """Add a node, mostly to the last one."""
    value = growth.values[-1] if growth.pick((True, True, True, False)) else growth.pick(growth.values[::-1])
    if growth.bounds[value] > GREATEST:
        growth.grow(growth.pick(("tanh", "sigmoid")), value, bound=1.0)
        return
    fitting = [k for k in KINDS if len(growth.shape(value)) in k.ranks for _ in range(k.weight)]
    kind = growth.pick(fitting)
    # Two nodes of a kind that read one value: equal, or equal but for an attribute.
    for _ in range(growth.pick((1, 1, 1, 1, 2))):
        kind.add(growth, value)
