"""Writer of C text, and names of a kernel's parts in it.

All names are generated; none comes from user text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from math import prod

from attrs import define, field

from ...ir import (
    DType,
    Index,
    Initialise,
    Kernel,
    LaneReduce,
    RegisterWrite,
    SharedBuffer,
    SharedMatrix,
    SharedMatrixLayout,
    Var,
    linearise,
    phases,
    row_major,
    variables,
)
from .dialect import Dialect, swizzled_text
from .index_ctext import PointerName, index_text

_NAME = re.compile(r"[A-Za-z_]\w*")


@define
class Writer:
    """Collects indented lines, and the names that they use."""

    dialect: Dialect
    lines: list[str] = field(factory=list)
    depth: int = 0
    used: set[str] = field(factory=set)

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append("  " * self.depth + text)
        self.used.update(_NAME.findall(text))

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Open a braced block."""
        self.line(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    @contextmanager
    def loop(
        self, var: Var, unroll: int = 0, meets: bool = False, until: Var | None = None, at_least_once: bool = False,
        begin: str = "0", by: int = 1,
    ) -> Iterator[None]:  # fmt: skip
        """Open a counted loop with an unroll factor.

        `unroll` is 0 for full unrolling, where the dialect supports it. With `meets`, threads synchronise in it; it
        counts from `begin` on `by` a number and ends before `until`, but `at_least_once` runs its first iteration.
        """
        if self.dialect.unroll:
            whole = unroll in (0, var.extent)
            self.line(self.dialect.unroll if whole else self.dialect.unroll_by.format(count=unroll))
        kind = self.dialect.meeting_counter if meets else "int"
        counter = var.name if kind == "int" else f"{var.name}_count"
        first = f"{counter} < 1 || " if at_least_once else ""
        end = until.name if until else var.extent
        step = f"++{counter}" if by == 1 else f"{counter} += {by}"
        with self.block(f"for ({kind} {counter} = {begin}; {first}{counter} < {end}; {step})"):
            if counter != var.name:
                self.line(f"const int {var.name} = {counter};")
            yield

    @contextmanager
    def loops(self, variables: Sequence[Var], meets: bool = False) -> Iterator[None]:
        """Open nested unrolled loops, a plain block for none.

        With `meets`, threads synchronise in them.
        """
        if not variables:
            yield
            return
        with self.loop(variables[0], meets=meets), self.loops(variables[1:], meets):
            yield


@define(slots=False)
class KernelNames:
    """Names of buffers, held registers and temporaries of one kernel.

    `elected` is the condition of the thread that issues bulk copies. All blocks of a cluster have begun where
    `in_cluster` is set.
    """

    kernel: Kernel
    dialect: Dialect
    pointers: dict[str, PointerName]
    maps: Mapping[str, str] = field(factory=dict)
    elected: str = "tid == 0"
    registers: dict[str, str] = field(factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(factory=dict)
    types: dict[str, DType] = field(factory=dict)
    count: int = 0
    in_cluster: bool = False

    @property
    def thread(self) -> str:
        """Number of a thread among those of all teams."""
        return self.dialect.thread_index if self.kernel.teams > 1 else "tid"

    @cached_property
    def tiles(self) -> frozenset[Var]:
        """Coordinates of a block's tile."""
        found = {"blk"}
        for each in self.kernel.defines:
            found |= {each.var.name for v in variables(each.value) if v.name in found}
        return frozenset(d.var for d in self.kernel.defines if d.var.name in found)

    @cached_property
    def stores_operands(self) -> bool:
        """Return whether operands of matrix instructions stay in registers between phases."""
        return any(
            isinstance(root, RegisterWrite) and root.operand
            for phase in phases(self.kernel.items)
            for root in phase.roots
        )

    @cached_property
    def along(self) -> frozenset[str]:
        """Reductions with a value for each element of their rows.

        Each value is written to its register once.
        """
        roots = (root for phase in phases(self.kernel.items) for root in phase.roots)
        return frozenset(root.name for root in roots if isinstance(root, LaneReduce) and root.along)

    def fresh(self) -> str:
        """Return a new name for a temporary."""
        self.count += 1
        return f"x{self.count}"

    def buffer(self, space: str, buffer: str, dtype: DType | None = None) -> str:
        """Return the pointer to a buffer.

        It is cast where elements of an integer `dtype` are the bits of others.
        """
        shared, dialect = space == "shared", self.dialect
        name = buffer if shared else self.pointers[buffer].name
        if dtype is None or not dtype.is_int or space not in dialect.spaces:
            return name
        stored = (
            next(b.dtype for b in self.kernel.shared if b.name == buffer) if shared else self.pointers[buffer].dtype
        )
        same = not stored.is_float or dialect.memory_type(stored) == dialect.memory_type(dtype)
        return name if same else f"(({dialect.spaces[space]}{dialect.memory_type(dtype)}*){name})"

    def matrix(self, read: SharedMatrix) -> SharedMatrixLayout:
        """Return the layout in which matrix instructions read a buffer."""
        layout = next(b.matrix for b in self.kernel.shared if b.name == read.buffer)
        return layout.transposed if read.turned else layout

    def place(self, space: str, buffer: str, index: Index) -> str:
        """Return the text of an element's place in a buffer."""
        if space == "shared" and buffer in self.swizzled:
            return swizzled_text(index, self.swizzled[buffer], self.pointers)
        return index_text(index, self.pointers)

    @cached_property
    def swizzled(self) -> Mapping[str, SharedBuffer]:
        """Swizzled buffers by name."""
        return {b.name: b for b in self.kernel.shared if b.swizzle}

    def register(self, name: str, at: tuple[Index, ...]) -> str:
        """Return the register that holds a reduction's value."""
        return f"{self.registers[name]}[{index_text(linearise(at, row_major(self.shapes[name])), self.pointers)}]"

    def initialise(self, out: Writer, node: Initialise, identity: str) -> None:
        """Print the initialisation of all registers of a reduction."""
        with out.loop(Var("e", prod(node.shape))):
            out.line(f"{self.registers[node.name]}[e] = {identity};")

    def lane_scratch(self, dtype: DType) -> str:
        """Return the pointer to the lanes' scratch for values of a type."""
        kind = self.dialect.memory_type(dtype)
        return f"(({self.dialect.spaces['shared']}{kind}*)lanes)"
