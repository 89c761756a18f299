"""Run-time checks of integer tensors whose elements are used as indices."""

from __future__ import annotations

import math

from attrs import frozen

from ..errors import GraphError, quote
from ..types import row_major


@frozen
class IndexCheck:
    """Check that the elements of an integer tensor are valid indices.

    `node` uses them as indices of an axis of `extent` elements. `tensor` is the declaration's name of the tensor
    and `value` the graph's, empty for an intermediate. Two results of the graph hold the outcome: `place` the row-major
    position of the first element out of range (the tensor's size where there is none), `found` that element.
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
        """Return the error of the two results; None without one."""
        if place >= math.prod(self.shape):
            return None
        at = tuple(place // step % extent for step, extent in zip(row_major(self.shape), self.shape, strict=True))
        return out_of_range(tensor_words(self.node, self.op, self.tensor, self.value), at, found, self.extent)


class IndexFault(GraphError):
    """Error of an integer tensor with an invalid index."""

    def __init__(self, tensor: str, at: tuple[int, ...], found: int, extent: int) -> None:
        error = out_of_range(quote(tensor), at, found, extent)
        super().__init__(error.message, hint=error.hint)
        self.tensor, self.at, self.found, self.extent = tensor, at, found, extent


def tensor_words(node: str, op: str, tensor: str, value: str) -> str:
    """Return the words for a tensor of a node in messages.

    An operand is named by its names in the declaration and in the graph.
    """
    what = f"operand {quote(tensor)} (value {quote(value)})" if value else f"intermediate {quote(tensor)}"
    return f"node {quote(node)} ({op}): {what}"


def out_of_range(where: str, at: tuple[int, ...], found: int, extent: int) -> GraphError:
    """Return the error of an element that is no valid index.

    The element stands at a position of an integer tensor that indexes an axis of `extent` elements.
    """
    expected = f"expected indices from {-extent} to {extent - 1}"
    return GraphError(
        f"{where}: {expected}, found {found} at {list(at)}", hint="correct the integers that the model is given"
    )
