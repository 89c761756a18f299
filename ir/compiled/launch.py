"""Kernel functions in source form, and the storage of tensors.

Names inside a kernel are generated; the tensor names of a graph appear only in `Argument.tensor`, never in source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import evolve, field, frozen

from ..machine import TensorMap
from ..types import DType

#: Suffix of the names of kernels that begin by waiting for the end of all earlier launches, where the machine can place
#: a kernel before that (programmatic launch).
WAITING_SUFFIX = "_waits"
#: First word of the name of a kernel without operations.
_NO_LABEL = "cuts"
_SUFFIXES = {"cuda": ".cu", "opencl": ".cl"}
#: Longest label of a kernel's name, and the end of that name: the digest of the kernel's content.
MAX_LABEL, _CONTENT = 31, re.compile(rf"(?<=_)[0-9a-f]{{16}}({WAITING_SUFFIX})?$")
#: Key in the facts of a library routine: the name of the fallback kernel, which it replaces.
FALLBACK_KEY = "instead"


@frozen
class Storage:
    """Location of a tensor: buffer, offset and strides in elements.

    Element `i` is at `offset + sum(i * strides)` of buffer `buffer`. Most tensors own a dense buffer of their own name;
    a part of a concatenation or a slice lives inside another's. In a loop of `iterations` iterations, the tensor may
    move by `by` elements an iteration; where `period` is not 0 it starts again after so many iterations, and `phase` of
    them precede the first.
    """

    buffer: str
    offset: int
    strides: tuple[int, ...]
    by: int = 0
    iterations: int = 1
    period: int = 0
    phase: int = 0

    def start(self, turn: int = 0) -> int:
        """Return the tensor's first element in the buffer at an iteration."""
        return self.offset + self.by * ((turn + self.phase) % self.period if self.period else turn)

    @property
    def ends(self) -> tuple[int, int]:
        """The least and the greatest start of the tensor in its buffer."""
        last = self.by * ((self.period or self.iterations) - 1)
        return self.offset + min(0, last), self.offset + max(0, last)


@frozen
class Argument:
    """Pointer parameter of a kernel.

    It has the graph tensor bound to it, its element type and whether the kernel writes it. The pointer addresses the
    tensor's first element (`Storage.offset` is added at launch); strides are literals of the source. An argument
    with a `map` is the tensor map of its tensor where the machine has such maps, else a pointer; such arguments come
    first.
    """

    tensor: str
    dtype: DType
    written: bool
    map: TensorMap | None = None


@frozen
class KernelFunction:
    """Kernel: source of one dialect, entry name, launch geometry, parameters in order.

    The dialect is "cuda" or "opencl". `source` is a complete translation unit. `grid` counts blocks and `block`
    threads, each (x, y, z). `shared_bytes` is static shared memory, declared inside the kernel; `dynamic_shared` the
    further bytes that a launch requests. `info` has the facts for reports: chosen parameters, bound, FLOPs, bytes,
    group members.
    """

    name: str
    dialect: str
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    dynamic_shared: int = 0
    info: Mapping[str, object] = field(factory=dict)

    @property
    def source_suffix(self) -> str:
        """The suffix of a file of its source."""
        return source_suffix(self.dialect)

    def with_label(self, operations: Iterable[str] = ()) -> KernelFunction:
        """Return the kernel named after its operations and its digest.

        Without operations it is the name that equal kernels share. The name of a library routine stays.
        """
        content = _CONTENT.search(self.name)
        name = f"{kernel_label(operations)}_{content.group()}" if content else self.name
        return self if name == self.name else evolve(self, name=name, source=self.source.replace(self.name, name))


def source_suffix(dialect: str) -> str:
    """Return the suffix of a source file.

    The description of a library's routine is a text."""
    return _SUFFIXES.get(dialect, ".txt")


def kernel_label(operations: Iterable[str]) -> str:
    """Return the first part of a kernel's name: operations, each once.

    matmul, add, gelu, add  ->  matmul_add_gelu
    """
    words = dict.fromkeys(re.sub("[^a-z0-9]+", "_", name.lower()).strip("_") for name in operations)
    label = "_".join(filter(None, words))
    if not label[:1].isalpha():
        label = f"{_NO_LABEL}_{label}".rstrip("_")
    if len(label) > MAX_LABEL:
        whole = label[: MAX_LABEL + 1].rpartition("_")[0]
        label = whole or label[:MAX_LABEL]
    return label
