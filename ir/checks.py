"""Checks of what only a run knows: integers of a tensor that are used as indices."""

from __future__ import annotations

import math

from attrs import frozen

from .errors import GraphError, quote
from .types import row_major


@frozen
class IndexCheck:
    """That the elements of an integer tensor, which `node` uses as indices of an axis of `extent` elements, lie in
    range.

    `tensor` is the declaration's name of the tensor and `value` the graph's, empty for an intermediate. Two results of
    the graph hold what was found: `place` the row-major position of the first element that does not (the tensor's size
    where all do), `found` that element.
    """

    node: str
    op: str
    tensor: str
    value: str
    shape: tuple[int, ...]
    extent: int
    place: str
    found: str

    def error(self, place: int, found: int) -> GraphError | None:
        """Return what is wrong, given the two results; None where every index lies in range."""
        if place >= math.prod(self.shape):
            return None
        at = tuple(place // step % extent for step, extent in zip(row_major(self.shape), self.shape, strict=True))
        return out_of_range(tensor_words(self.node, self.op, self.tensor, self.value), at, found, self.extent)


class IndexFault(GraphError):
    """An element of an integer tensor of a program is no index of the axis that it is used for."""

    def __init__(self, tensor: str, at: tuple[int, ...], found: int, extent: int) -> None:
        error = out_of_range(quote(tensor), at, found, extent)
        super().__init__(error.message, hint=error.hint)
        self.tensor, self.at, self.found, self.extent = tensor, at, found, extent


def tensor_words(node: str, op: str, tensor: str, value: str) -> str:
    """Return the words for a tensor of a node: an operand by its names in the declaration and in the graph, or an
    intermediate.
    """
    what = f"operand {quote(tensor)} (value {quote(value)})" if value else f"intermediate {quote(tensor)}"
    return f"node {quote(node)} ({op}): {what}"


def out_of_range(where: str, at: tuple[int, ...], found: int, extent: int) -> GraphError:
    """Return the error of an element at a position of an integer tensor that is no index of an axis of `extent`
    elements.
    """
    expected = f"expected indices from {-extent} to {extent - 1}"
    return GraphError(
        f"{where}: {expected}, found {found} at {list(at)}", hint="correct the integers that the model is given"
    )
