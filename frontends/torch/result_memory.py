"""Memory layout that a compiled graph promises for its results.

It has element types, strides, offsets and shared storages. PyTorch traced the consumers of a result with one layout; a
view in the backward graph is legal for that layout only.

PyTorch traced the consumers of a result with one layout; a view in the backward graph is legal for that layout only.

    y = conv(x)                   ->   memory 0: output y, dense
    return y, y[:, 1:], x.t()          results: memory 0; memory 0 from an offset on; a view of input x
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import asdict, field, frozen

from ...ir import DType, TensorType


@frozen
class TensorForm:
    """Elements in a storage: `offset` elements from its start, with these strides."""

    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @property
    def size(self) -> int:
        """Number of elements, counted as often as the shape repeats them."""
        found = 1
        for extent in self.shape:
            found *= extent
        return found

    @property
    def ends(self) -> tuple[int, int]:
        """Offsets in bytes of the begin and the end."""
        start = self.offset * self.dtype.size
        last = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) if self.size else -1
        return start, start + (last + 1) * self.dtype.size

    @property
    def is_dense(self) -> bool:
        """Return whether the elements fill their range, each once."""
        first, last = self.ends
        return not self.overlaps and last - first == self.size * self.dtype.size

    @property
    def overlaps(self) -> bool:
        """Return whether two indices may share an element.

        Interleaved strides count too.
        """
        reach = 1
        steps = sorted((step, n) for n, step in zip(self.shape, self.strides, strict=True) if n != 1)
        for step, extent in steps if self.size else ():
            if step < reach:
                return True
            reach += (extent - 1) * step
        return False

    def covers(self, other: TensorForm) -> bool:
        """Return whether this dense form contains all elements of another."""
        return self.is_dense and self.ends[0] <= other.ends[0] and other.ends[1] <= self.ends[1]

    def lies_as(self, strides: Sequence[int]) -> bool:
        """Return whether elements have the layout of strides.

        An axis of one element may have any stride.
        """
        steps = zip(self.shape, self.strides, strides, strict=True)
        return not self.size or all(n == 1 or ours == theirs for n, ours, theirs in steps)


@frozen
class ResultPart:
    """Output of a graph in an axis order, and its memory layout."""

    name: str
    form: TensorForm
    order: tuple[int, ...]


@frozen
class Memory:
    """Storage that each call allocates, and the outputs that fill it."""

    parts: tuple[ResultPart, ...]
    nbytes: int


@frozen
class ResultView:
    """Result in a memory, or in the storage of an input.

    In the storage of an input the offset counts from the input's first element, and `given` has the input's strides;
    `whole` is the input itself.
    """

    form: TensorForm
    memory: int | None = None
    argument: int | None = None
    given: TensorForm | None = None
    whole: bool = False


@frozen
class ResultMemory:
    """Memories of a graph, and its results by name."""

    memories: tuple[Memory, ...] = ()
    views: Mapping[str, ResultView] = field(factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs of the graph."""
        return tuple(part.name for memory in self.memories for part in memory.parts)

    def record(self) -> dict[str, Any]:
        """Return the memory as JSON has it."""
        return asdict(self, value_serializer=lambda _, __, value: value.value if isinstance(value, DType) else value)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> ResultMemory:
        """Return the memory of a JSON record."""
        memories = (
            Memory(tuple(ResultPart(p["name"], _form(p["form"]), tuple(p["order"])) for p in m["parts"]), m["nbytes"])
            for m in record["memories"]
        )
        views = {
            name: ResultView(_form(v["form"]), v["memory"], v["argument"], v["given"] and _form(v["given"]), v["whole"])
            for name, v in record["views"].items()
        }
        return cls(tuple(memories), views)


def _form(record: Mapping[str, Any]) -> TensorForm:
    return TensorForm(DType(record["dtype"]), tuple(record["shape"]), tuple(record["strides"]), record["offset"])


def dense_form(type_: TensorType) -> TensorForm:
    """Return the form of a tensor in the order of its axes."""
    return TensorForm(type_.dtype, type_.shape, dense_strides(type_.shape))


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return PyTorch's strides of a new tensor.

    An axis without elements counts as one.
    """
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def dense_memory(types: Mapping[str, TensorType], names: Sequence[str]) -> ResultMemory:
    """Return a separate memory for each of some outputs."""
    forms = {name: dense_form(types[name]) for name in names}
    memories = tuple(
        Memory((ResultPart(name, form, tuple(range(len(form.shape)))),), form.ends[1]) for name, form in forms.items()
    )
    return ResultMemory(memories, {name: ResultView(form, memory=n) for n, (name, form) in enumerate(forms.items())})
