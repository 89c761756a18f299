"""Records of kernels, launches and copies for the library."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import WAITING_SUFFIX, DType, KernelFunction, TensorMap
from ..launch_sequence import BlockAddress, SequencePlan
from .records import DIALECTS, NONE, RecordTables

#: The driver's numbers of element types and swizzles of tensor maps, and of the sectors that L2 reads together.
_MAP_TYPES = {
    DType.I8: 0, DType.U8: 0, DType.F8E4M3: 0, DType.F8E5M2: 0, DType.F16: 6, DType.F32: 7, DType.BF16: 9,
}  # fmt: skip
_ROUNDED_MAP_TYPE, _SWIZZLES, _PROMOTION = 11, {0: 0, 32: 1, 64: 2, 128: 3}, 2
#: Kind of a block of the caller that kernels may write, the role of its tensor, and DLPack's code of its bytes.
_OUTPUT_BLOCK, _OUTPUT_ROLE, _BYTE_CODE = 3, 1, 1


def add_info(tables: RecordTables, texts: Sequence[str], dialect: str, arch: str) -> None:
    """Add the record about a plan.

    `texts` are its name, the version of `cuts`, the target and the build options.
    """
    digits = "".join(c for c in arch if c.isdigit())
    numbers = [number for text in texts for number in tables.text(text)]
    tables.add("info", *numbers, DIALECTS[dialect], int(digits or 0), 0)


def add_kernels(tables: RecordTables, kernels: Sequence[KernelFunction], programs: Sequence[int]) -> None:
    """Add kernels with the numbers of their programs.

    The number is `NONE` for a function of the caller.
    """
    for kernel, program in zip(kernels, programs, strict=True):
        first = tables.count("argument")
        for argument in kernel.arguments:
            number = NONE if argument.map is None else _add_map(tables, argument.map)
            tables.add("argument", argument.dtype.size, number)
        tables.add(
            "kernel", *tables.text(kernel.name), program, first, len(kernel.arguments),
            kernel.name.endswith(WAITING_SUFFIX), *kernel.grid, *kernel.block, kernel.shared_bytes,
            kernel.dynamic_shared,
        )  # fmt: skip


def _add_map(tables: RecordTables, map_: TensorMap) -> int:
    def pad(values: Sequence[int], count: int) -> list[int]:
        return [*values, *[0] * (count - len(values))]

    return tables.add(
        "map", _ROUNDED_MAP_TYPE if map_.rounded else _MAP_TYPES[map_.dtype], len(map_.dims), _SWIZZLES[map_.swizzle],
        _PROMOTION, *pad(map_.dims, 5), *pad(map_.strides, 4), *pad(map_.box, 5), len(map_.pixels),
        *pad(map_.starts, 3), *pad(map_.ends, 3), *pad(map_.steps, 3), 0,
    )  # fmt: skip


def add_launches(tables: RecordTables, sequence: SequencePlan, numbers: Sequence[int] | None = None) -> None:
    """Add launches in order.

    `numbers` are the records of kernels; `NONE` for a routine, whose launches are a graph of the caller.
    """
    for position, (call, turn) in enumerate(sequence.order):
        made = sequence.calls[call]
        kernel = made.kernel if numbers is None else numbers[made.kernel]
        first = tables.count("address")
        for place in made.iterations[turn] if kernel != NONE else ():
            tables.add("address", place.block, 0, place.offset)
        waits = None if sequence.waits is None else sequence.waits[position]
        first_wait = tables.numbers(waits or ())
        argument, nbytes = (None if kernel == NONE else made.evict_first) or (NONE, 0)
        count = NONE if waits is None else len(waits)
        tables.add("launch", kernel, first, first_wait, count, argument, 0, nbytes)


def add_copy(
    tables: RecordTables, after: int, source: BlockAddress, target: BlockAddress, shape: Sequence[int]
) -> None:
    """Add a copy before the launches or after them.

    `shape` has bytes of a row, rows, and the pitches of source and target.
    """
    tables.add("copy", after, 0, source.block, 0, source.offset, target.block, 0, target.offset, *shape)


def pack_sequence(
    sequence: SequencePlan, kernels: Sequence[KernelFunction], is_routine: Sequence[bool], arch: str
) -> bytes:
    """Return a launch sequence as a packed plan.

    Its blocks are outputs of bytes; those that nothing touches have none. Kernels are functions of the caller, and
    routines graphs.
    """
    tables, numbers = RecordTables(), list[int]()
    add_info(tables, ("sequence", "", arch, ""), "cuda", arch)
    touched = {place.block for call in sequence.calls for places in call.iterations for place in places}
    copies = [(after, each) for after, part in enumerate((sequence.before, sequence.after)) for each in part]
    touched |= {place.block for _, each in copies for place in (each.source, each.destination)}
    for number, block_bytes in enumerate(sequence.blocks):
        nbytes = block_bytes if number in touched else 0
        tables.add("block", _OUTPUT_BLOCK, 0, nbytes)
        first = tables.numbers([nbytes])
        tensor = _OUTPUT_ROLE, number, _BYTE_CODE, 8, 1, 1, NONE, 0, first, 0, nbytes
        tables.add("tensor", *tables.text(f"block {number}"), *tensor)
    own = [kernel for kernel, routine in zip(kernels, is_routine, strict=True) if not routine]
    add_kernels(tables, own, [NONE] * len(own))
    for routine in is_routine:
        numbers.append(NONE if routine else sum(number != NONE for number in numbers))
    add_launches(tables, sequence, numbers)
    for after, each in copies:
        if each.nbytes:
            shape = each.nbytes, 1, each.nbytes, each.nbytes
            add_copy(tables, after, each.source, each.destination, shape)
    return tables.to_bytes()
