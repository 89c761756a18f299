"""Emission: a kernel of one thread becomes source of a dialect and a launchable function (DeepCuts section 6.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from math import prod

from ...ir import (
    LANES,
    MATRIX_ATOMS,
    Argument,
    AtomAccumulate,
    Barrier,
    Commit,
    DType,
    Initialise,
    Item,
    Keep,
    Kernel,
    KernelFunction,
    LaneReduce,
    Loop,
    Phase,
    SharedBuffer,
    Wait,
    phases,
)
from .atom_text import operand_words
from .atomics import combining_helpers
from .ctext import number_text
from .dialects import DIALECTS, Dialect
from .index_ctext import PointerName, index_text
from .phase import print_phase
from .scope import KernelNames, Writer


def emit(kernel: Kernel, dialect_name: str, info: Mapping[str, object] | None = None) -> KernelFunction:
    """Return the function of an extracted kernel; its name is a digest of its text, so equal kernels are equal."""
    dialect = DIALECTS[dialect_name]
    arguments = _arguments(kernel)
    body, used = _body(kernel, dialect, arguments)
    head = _head(kernel, dialect, arguments)
    digest = hashlib.sha256((head + body).encode()).hexdigest()[:16]
    name = f"cuts_{digest}"
    combining, more = combining_helpers(used, dialect)
    source = (
        f"{dialect.prologue}{dialect.helpers_of(used | more)}{combining}{head.replace(_NAME, name)} {{\n{body}\n}}\n"
    )
    return KernelFunction(
        name=name,
        dialect=dialect.name,
        source=source,
        grid=(kernel.blocks, 1, 1),
        block=(kernel.threads, 1, 1),
        arguments=arguments,
        shared_bytes=kernel.shared_bytes - _dynamic(kernel, dialect),
        dynamic_shared=_dynamic(kernel, dialect),
        tables=dict(kernel.tables),
        info=dict(info or {}),
    )


_NAME = "CUTS_KERNEL_NAME"


def _arguments(kernel: Kernel) -> tuple[Argument, ...]:
    """Parameters in order: what is written, what is read, tables."""
    written = [Argument(t, kernel.dtypes[t], True) for t in kernel.writes]
    read = [Argument(t, kernel.dtypes[t], False) for t in kernel.reads if t not in kernel.writes]
    return (*written, *read, *(Argument(t, DType.I32, False, table=True) for t in kernel.tables))


def _head(kernel: Kernel, dialect: Dialect, arguments: tuple[Argument, ...]) -> str:
    params = [
        dialect.pointer.format(const="" if a.written else "const ", type=dialect.memory_type(a.dtype), name=f"p{n}")
        for n, a in enumerate(arguments)
    ]
    min_blocks = f", {kernel.min_blocks}" if kernel.min_blocks else ""
    return dialect.kernel.format(threads=kernel.threads, min_blocks=min_blocks, name=_NAME, params=", ".join(params))


def _body(kernel: Kernel, dialect: Dialect, arguments: tuple[Argument, ...]) -> tuple[str, set[str]]:
    """Return the text of a kernel's body, and the names that it uses."""
    constants = {t: PointerName(f"k{n}", kernel.dtypes[t]) for n, t in enumerate(kernel.constants)}
    names = KernelNames(
        kernel, dialect, {a.tensor: PointerName(f"p{n}", a.dtype) for n, a in enumerate(arguments)} | constants
    )
    head, out = Writer(dialect, depth=1), Writer(dialect, depth=1)
    if dialect.base:
        for number in range(len(arguments)):
            head.line(dialect.base.format(name=f"p{number}"))
    for tensor, values in kernel.constants.items():
        dtype = kernel.dtypes[tensor]
        text = ", ".join(number_text(v if dtype.is_float else int(v), dtype, dialect) for v in values)
        head.line(
            dialect.constant.format(type=dialect.type(dtype), name=constants[tensor], count=len(values), values=text)
        )
    _declare_held(kernel, names, out)
    for item in kernel.items:
        _item(item, names, out)
    if dialect.atom_scratch and (words := _atom_words(kernel)):
        head.line(dialect.atom_scratch.format(count=words))
    # What no phase uses (lane scratch where warps shuffle) is not declared.
    for line in _shared([b for b in kernel.shared if b.name in out.used], dialect, _dynamic(kernel, dialect)):
        head.line(line)
    defined = _definitions(kernel, dialect, names, out.used)
    return "\n".join([*head.lines, *defined.lines, *out.lines]), head.used | defined.used | out.used


def _atom_words(kernel: Kernel) -> int:
    """Return the words in which the lanes of all warps lay out the operands of an atom."""
    found = [MATRIX_ATOMS[r.atom] for p in phases(kernel.items) for r in p.roots if isinstance(r, AtomAccumulate)]
    return max((operand_words(atom) for atom in found), default=0) * (kernel.threads // LANES)


def _definitions(kernel: Kernel, dialect: Dialect, names: KernelNames, used: Collection[str]) -> Writer:
    """Define the coordinates among some names, and those that their definitions use."""
    values = {"blk": dialect.block_index, "tid": dialect.thread_index}
    values |= {d.var.name: index_text(d.value, names.pointers) for d in kernel.defines}
    out = Writer(dialect, depth=1)
    for name, value in reversed(values.items()):
        if name in used or name in out.used:
            out.line(f"const int {name} = {value};")
    out.lines.reverse()
    return out


def _dynamic(kernel: Kernel, dialect: Dialect) -> int:
    """Return the shared bytes to ask for at launch: all of them where they exceed what a declaration may have, else
    none.
    """
    return kernel.shared_bytes if dialect.shared_pool and kernel.shared_bytes > dialect.static_shared else 0


def _shared(buffers: Sequence[SharedBuffer], dialect: Dialect, dynamic: int) -> list[str]:
    """Declare shared buffers, each by itself or as parts of one pool that the launch sizes; elements lie in them as in
    memory.
    """
    if not dynamic:
        return [line for b in buffers for line in _declared(b, dialect)]
    lines = [dialect.shared_pool]
    offset = 0
    for buffer in buffers:
        lines.append(
            dialect.shared_part.format(type=dialect.memory_type(buffer.dtype), name=buffer.name, offset=offset)
        )
        offset += buffer.nbytes
    return lines


def _declared(buffer: SharedBuffer, dialect: Dialect) -> list[str]:
    """Declare one shared buffer; where no variable may have its type, as one of bits and a pointer to them."""
    kind = dialect.memory_type(buffer.dtype)
    if kind not in dialect.shared_bits:
        return [dialect.shared.format(type=kind, name=buffer.name, count=buffer.elements)]
    bits = dialect.shared.format(type=dialect.shared_bits[kind], name=f"{buffer.name}_bits", count=buffer.elements)
    return [bits, dialect.shared_part.format(type=kind, name=buffer.name, offset=0)]


def _declare_held(kernel: Kernel, names: KernelNames, out: Writer) -> None:
    """Declare the registers of every reduction, and those in which operands are kept."""
    for phase in phases(kernel.items):
        for root in phase.roots:
            if isinstance(root, (Initialise, Keep)) and root.name not in names.registers:
                register = f"a{len(names.registers)}"
                names.registers[root.name] = register
                names.shapes[root.name] = root.shape
                out.line(f"{names.dialect.type(root.dtype)} {register}[{prod(root.shape)}];")


def _meets(items: Sequence[Item]) -> bool:
    """Whether threads wait for each other in some items."""
    for item in items:
        combines = isinstance(item, Phase) and any(
            isinstance(root, (LaneReduce, AtomAccumulate)) for root in item.roots
        )
        if combines or isinstance(item, Barrier) or (isinstance(item, Loop) and _meets(item.body)):
            return True
    return False


def _item(item: Item, names: KernelNames, out: Writer) -> None:
    if isinstance(item, Loop):
        with out.loop(item.var, unroll=1, meets=_meets(item.body)):
            for inner in item.body:
                _item(inner, names, out)
    elif isinstance(item, Phase):
        print_phase(item, names, out)
    elif isinstance(item, Barrier):
        out.line(names.dialect.barrier)
    elif isinstance(item, Commit):
        if names.dialect.commit:
            out.line(names.dialect.commit)
    elif isinstance(item, Wait) and names.dialect.wait:
        out.line(names.dialect.wait.format(pending=item.pending))
