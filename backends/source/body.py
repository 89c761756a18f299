"""Text of a kernel's body: its declarations and one thread's statements."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod

from attrs import frozen

from ...ir import (
    LANE_PRODUCTS,
    LANES,
    MMA_INSTRUCTIONS,
    WIDEST_BYTES,
    Barrier,
    BulkFetch,
    Commit,
    Initialise,
    Item,
    Kernel,
    LaneExchange,
    LaneProduct,
    Loop,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    Mma,
    Phase,
    ProductFence,
    ProductWait,
    RegisterRead,
    RegisterWrite,
    SharedBuffer,
    SharedMatrix,
    TurnPass,
    TurnWait,
    Var,
    Wait,
    WarpgroupMma,
    has_synchronisation,
    loops,
    phases,
    variables,
)
from .bulk_copies import print_bulk, print_producer
from .ctext import number_text
from .dialect import EXCHANGED_RESULTS, Dialect, held_rows_words, operand_words
from .index_ctext import PointerName, index_text
from .lanes import begin_cluster
from .phase import print_phase
from .scope import KernelNames, Writer


@frozen
class BodyText:
    """Parts of a kernel's body.

    They are lines that declare constants, the words of lane scratch for matrix instructions, the used shared buffers,
    the lines of a thread's statements, and the names that all of them use.
    """

    constants: tuple[str, ...]
    words: int
    shared: tuple[SharedBuffer, ...]
    lines: tuple[str, ...]
    used: frozenset[str]


def body_text(
    kernel: Kernel,
    dialect: Dialect,
    pointers: Mapping[str, PointerName],
    block: str,
    prefix: str = "k",
    maps: Mapping[str, str] | None = None,
) -> BodyText:
    """Return the body of a kernel with these pointers.

    `maps` names its tensor maps; `block` is the number of its block; names of constants begin with `prefix`.
    """
    constants = {t: PointerName(f"{prefix}{n}", kernel.dtypes[t]) for n, t in enumerate(kernel.constants)}
    names = KernelNames(kernel, dialect, {**pointers, **constants}, maps or {})
    names.elected = f"{names.thread} == 0"
    head, out = Writer(dialect, depth=1), Writer(dialect, depth=1)
    for tensor, values in kernel.constants.items():
        dtype = kernel.dtypes[tensor]
        text = ", ".join(number_text(v if dtype.is_float else int(v), dtype, dialect) for v in values)
        head.line(
            dialect.constant.format(type=dialect.type(dtype), name=constants[tensor], count=len(values), values=text)
        )
    _declare_held(kernel, names, out)
    if kernel.cluster > 1 and dialect.cluster:
        begin_cluster(names, out)
    meeting = next((n for n, item in enumerate(kernel.items) if isinstance(item, Barrier)), -1) + 1
    if kernel.producer:
        for item in kernel.items[:meeting]:
            _item(item, names, out)
        print_producer(names, out, _print_turns)
    _print_turns(kernel.items[meeting if kernel.producer else 0 :], names, out)
    # Buffers without uses (lane scratch where warps shuffle) are not declared.
    shared = tuple(b for b in kernel.shared if b.name in out.used)
    defined = _definitions(kernel, dialect, names, out.used, block)
    lines = (*defined.lines, *out.lines)
    words = _atom_words(kernel) if dialect.atom_scratch else 0
    return BodyText(tuple(head.lines), words, shared, lines, frozenset(head.used | defined.used | out.used))


def _atom_words(kernel: Kernel) -> int:
    """Return the words of scratch for the matrix instructions of all warps."""
    roots = [r for p in phases(kernel.items) for r in p.roots]
    words = [operand_words(MMA_INSTRUCTIONS[r.instruction]) for r in roots if isinstance(r, Mma)]
    words += [
        operand_words(MMA_INSTRUCTIONS[f"m16n8k16_{LANE_PRODUCTS[r.instruction]}"])
        for r in roots
        if isinstance(r, LaneProduct)
    ]
    bodies = (kernel.items, *(loop.body for loop in loops(kernel.items)))
    words += [LANES * EXCHANGED_RESULTS] * any(isinstance(item, LaneExchange) for body in bodies for item in body)
    held = [r for r in roots if isinstance(r, WarpgroupMma) and isinstance(r.a, RegisterRead)]
    words += [held_rows_words(MMA_INSTRUCTIONS[r.instruction]) for r in held]
    return max(words, default=0) * (kernel.threads // LANES)


def _definitions(kernel: Kernel, dialect: Dialect, names: KernelNames, used: Collection[str], block: str) -> Writer:
    """Define the coordinates among some names, and those that their definitions use."""
    values = {"blk": block, "tid": dialect.thread_index}
    if kernel.cluster > 1 and not dialect.cluster:
        values["blk"] = f"{block} * {kernel.cluster} + {dialect.thread_index} / {kernel.threads}"
        values["tid"] = f"{dialect.thread_index} % {kernel.threads}"
    if kernel.teams > 1 and dialect.map_parameter:
        team = f"{dialect.thread_index} / {kernel.threads}"
        values |= {"team": dialect.shuffle_from.format(value=team, source=0)}
        values["tid"] = f"{dialect.thread_index} % {kernel.threads}"
    values |= {d.var.name: index_text(d.value, names.pointers) for d in kernel.defines}
    if kernel.turn.extent > 1:
        values = {name: v for name, v in values.items() if name not in {"blk", *_block_coordinates(kernel, names)}}
    if dialect.shuffle_from:
        # A value of lane 0 is one of the warp, so that descriptors are computed in uniform registers.
        for name in values.keys() & _matrix_coordinates(kernel):
            values[name] = dialect.shuffle_from.format(value=values[name], source=0)
    out = Writer(dialect, depth=1)
    for name, value in reversed(values.items()):
        if name in used or name in out.used:
            out.line(f"const int {name} = {value};")
    out.lines.reverse()
    return out


def _print_turns(items: Sequence[Item], names: KernelNames, out: Writer) -> None:
    """Print items, for each block in turn where the grid is persistent."""
    kernel, dialect = names.kernel, names.dialect
    if kernel.turn.extent == 1:
        for item in items:
            _item(item, names, out)
        return
    turns = Var("turns", kernel.turn.extent + 1)
    out.line(f"const int {turns.name} = ({kernel.blocks - 1} - {dialect.block_index}) / {kernel.launched} + 1;")
    teams = kernel.teams if names.dialect.map_parameter and names.elected else 1
    begin = "team" if teams > 1 else "0"
    if kernel.done:
        out.line(f"int {kernel.done[0].name} = 0;")
    with out.loop(kernel.turn, 1, meets=True, until=turns, begin=begin, by=teams):
        out.line(f"const int blk = {dialect.block_index} + {kernel.turn.name} * {kernel.launched};")
        for name, value in _block_coordinates(kernel, names).items():
            out.line(f"const int {name} = {value};")
        for item in items:
            _item(item, names, out)
        if kernel.done:
            out.line(f"{kernel.done[0].name} += {kernel.done[1].name};")


def _block_coordinates(kernel: Kernel, names: KernelNames) -> dict[str, str]:
    """Return the definitions that follow from the number of a block in a persistent grid."""
    found: dict[str, str] = {}
    for define in kernel.defines if kernel.turn.extent > 1 else ():
        if {"blk", *found} & {v.name for v in variables(define.value)}:
            found[define.var.name] = index_text(define.value, names.pointers)
    return found


def _matrix_coordinates(kernel: Kernel) -> frozenset[str]:
    """Return the names that matrices of warpgroups begin at."""
    products = [r for p in phases(kernel.items) for r in p.roots if isinstance(r, WarpgroupMma)]
    matrices = [m for r in products for m in (r.a, r.b) if isinstance(m, SharedMatrix)]
    return frozenset(v.name for m in matrices for v in variables(m.start))


def declare_shared(buffers: Sequence[SharedBuffer], dialect: Dialect, dynamic: int) -> list[str]:
    """Declare shared buffers, as variables or parts of one dynamic pool.

    Elements have their memory layout.
    """
    if not dynamic:
        return [line for b in buffers for line in _declare_buffer(b, dialect)]
    lines = [dialect.shared_pool.format(align=alignment(buffers))]
    offset = 0
    for buffer in aligned_first(buffers):
        lines.append(
            dialect.shared_part.format(type=dialect.memory_type(buffer.dtype), name=buffer.name, offset=offset)
        )
        offset += buffer.nbytes
    return lines


def alignment(buffers: Iterable[SharedBuffer]) -> int:
    """Return the alignment of a pool of buffers in bytes."""
    return max((b.alignment for b in buffers), default=WIDEST_BYTES)


def aligned_first(buffers: Sequence[SharedBuffer]) -> Sequence[SharedBuffer]:
    """Return buffers in an order without gaps: the most aligned first."""
    return sorted(buffers, key=lambda buffer: -buffer.alignment)


def _declare_buffer(buffer: SharedBuffer, dialect: Dialect) -> list[str]:
    """Declare one shared buffer; where no variable may have its type, as bits and a pointer to them."""
    kind = dialect.memory_type(buffer.dtype)
    if kind not in dialect.shared_bits:
        return [dialect.shared.format(type=kind, name=buffer.name, count=buffer.elements, align=buffer.alignment)]
    bits = dialect.shared.format(
        type=dialect.shared_bits[kind], name=f"{buffer.name}_bits", count=buffer.elements, align=buffer.alignment
    )
    return [bits, dialect.shared_part.format(type=kind, name=buffer.name, offset=0)]


def _pin_registers(name: str, names: KernelNames, out: Writer) -> None:
    """Print a statement that reads and writes some registers where it stands."""
    with out.loop(Var("e", prod(names.shapes[name]))):
        kind = "f" if names.types[name].is_float else "r"
        out.line(names.dialect.pin.format(kind=kind, x=f"{names.registers[name]}[e]"))


def _print_exchange(item: LaneExchange, names: KernelNames, out: Writer) -> None:
    """Print the exchanges of results among the lanes of a row, eight at a time."""
    shape, pitch = names.shapes[item.name], prod(names.shapes[item.name][item.dim + 1 :])
    run = shape[item.dim] * pitch
    for first in (outer + inner for outer in range(0, prod(shape), run) for inner in range(pitch)):
        for start in range(first, first + run, EXCHANGED_RESULTS * pitch):
            registers = f"{names.registers[item.name]} + {start}"
            out.line(names.dialect.exchange.format(registers=registers, pitch=pitch, words=LANES * EXCHANGED_RESULTS))


def _elements(name: str, names: KernelNames) -> list[str]:
    """Return the texts of some registers."""
    return [f"{names.registers[name]}[{n}]" for n in range(prod(names.shapes[name]))]


def _declare_held(kernel: Kernel, names: KernelNames, out: Writer) -> None:
    """Declare the registers of every reduction, and those of stored operands."""
    for phase in phases(kernel.items):
        for root in phase.roots:
            if isinstance(root, (Initialise, RegisterWrite)) and root.name not in names.registers:
                register = f"a{len(names.registers)}"
                names.registers[root.name] = register
                names.shapes[root.name] = root.shape
                names.types[root.name] = root.dtype
                names.pointers[root.name] = PointerName(register, root.dtype, root.shape)
                out.line(f"{names.dialect.type(root.dtype)} {register}[{prod(root.shape)}];")


def _item(item: Item, names: KernelNames, out: Writer) -> None:
    if isinstance(item, Loop):
        meets = has_synchronisation(item.body)
        with out.loop(item.var, item.unroll, meets, item.until, item.at_least_once):
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
    elif isinstance(item, ProductWait) and names.dialect.product_wait:
        wait, values = names.dialect.product_wait, [x for name in item.before for x in _elements(name, names)]
        if values:  # a wait on both sides of a branch on these, or the compiler moves their computation after it
            wait = names.dialect.product_wait_after.replace("{x}", " + ".join(values))
        out.line(wait.replace("{pending}", str(item.pending)))
        for name in item.names:  # no read of the sums may move before the wait
            _pin_registers(name, names, out)
    elif isinstance(item, LaneExchange):
        _print_exchange(item, names, out)
    elif isinstance(item, (MbarrierInit, BulkFetch, MbarrierWait, MbarrierArrive, TurnWait, TurnPass)):
        print_bulk(item, names, out)
    elif text := names.dialect.fences.get(type(item).__name__):
        if isinstance(item, ProductFence) and names.dialect.pin:  # nor a write after the fence
            for name in item.names:
                _pin_registers(name, names, out)
        out.line(text)
