"""Printer of bulk copies, their mbarriers, and turns of warpgroups.

In CUDA C++ one thread issues them. In OpenCL C all threads of a block copy the box, with zeros outside the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import evolve

from ...ir import (
    FUNCTIONS,
    LANES,
    WARPGROUP,
    BulkCopy,
    BulkFetch,
    Guard,
    Index,
    IndexLike,
    Item,
    MbarrierArrive,
    MbarrierInit,
    MbarrierWait,
    TensorMap,
    TurnPass,
    TurnWait,
    Var,
    as_index,
    bulk_fetches,
)
from .dialect import MBARRIER_FENCE, REGISTER_LIMIT
from .index_ctext import guard_text, index_text
from .scope import KernelNames, Writer

#: Items with mbarriers, and turns of warpgroups.
MbarrierItem: TypeAlias = MbarrierInit | BulkFetch | MbarrierWait | MbarrierArrive | TurnWait | TurnPass
#: Named barrier of two warpgroups: one waits there, the one before it arrives. Barrier 0 is that of all threads.
_TURN = 'asm volatile("bar.{way} %0, {threads};" :: "r"(1 + {group}) : "memory");'
#: Unsigned type of an element's bytes in OpenCL C, which copies them as they are.
_BITS = {1: "uchar", 2: "ushort", 4: "uint", 8: "ulong"}


def print_producer(
    names: KernelNames, out: Writer, print_items: Callable[[Sequence[Item], KernelNames, Writer], None]
) -> None:
    """Print the items of a kernel's producer, whose warp then ends.

    In OpenCL C there is none: the threads that wait copy instead.
    """
    first, thread = names.kernel.teams * names.kernel.threads, names.thread
    for producer in names.kernel.producer if names.dialect.map_parameter else ():
        with out.block(f"if ({thread} >= {first})"):
            if producer.registers:
                out.line(REGISTER_LIMIT.format(way="dec", count=producer.registers))
            with out.block(f"if ({thread} == {first})"):
                print_items(producer.body, evolve(names, elected=""), out)
            out.line("return;")
        if producer.others:
            out.line(REGISTER_LIMIT.format(way="inc", count=producer.others))


def print_bulk(item: MbarrierItem, names: KernelNames, out: Writer) -> None:
    """Print an item with mbarriers."""
    (_CUDA_PRINTERS if names.dialect.map_parameter else _OPENCL_PRINTERS)[type(item)](item, names, out)


def _mbarrier(barriers: str, slot: Index, names: KernelNames) -> str:
    return f"&{barriers}[{index_text(slot, names.pointers)}]"


def _print_init(item: MbarrierInit, names: KernelNames, out: Writer) -> None:
    count = next(b.elements for b in names.kernel.shared if b.name == item.barriers)
    with out.block(f"if ({names.elected})"):
        with out.loop(Var("e", count)):
            out.line(f"cuts_mbarrier_init(&{item.barriers}[e], {item.arrivals});")
        out.line(MBARRIER_FENCE)


def _print_fetch(item: BulkFetch, names: KernelNames, out: Writer) -> None:
    condition = _condition(names.elected, item.when, names)
    barrier, maps = _mbarrier(item.barriers, item.slot, names), {m.name: m for m in names.kernel.maps}
    with out.block(f"if ({condition})" if condition else ""):
        out.line(f"cuts_mbarrier_expect({barrier}, {item.nbytes});")
        for copy in item.copies:
            box = maps[copy.map]
            found = (*_first_pixel(copy, box), *copy.coordinates[2:]) if box.pixels else copy.coordinates
            places = ", ".join(index_text(c, names.pointers) for c in found)
            address = f"&{copy.buffer}[{index_text(copy.address, names.pointers)}]"
            name = f"cuts_walking_copy{len(box.pixels)}" if box.pixels else f"cuts_bulk_copy{len(found)}"
            out.line(f"{name}({address}, {names.maps[copy.map]}, {barrier}, {places});")


def _first_pixel(copy: BulkCopy, box: TensorMap, further: IndexLike = 0) -> list[Index]:
    """Return the coordinates of a pixel of a copy along the dims of a map that walks, without offsets."""
    channel, number = copy.coordinates[0], copy.coordinates[1] + further
    found = [channel]
    for count, start, step in zip(box.pixels, box.starts, box.steps, strict=True):
        found.append(number % count * step + start)
        number = number // count
    return [*found, number]


def _condition(first: str, when: Sequence[Guard], names: KernelNames) -> str:
    return " && ".join(filter(None, (first, guard_text(when, names.pointers) if when else "")))


def _print_arrival(item: MbarrierArrive, names: KernelNames, out: Writer) -> None:
    condition = _condition(f"tid % {LANES} == 0", item.when, names)
    out.line(f"if ({condition}) cuts_mbarrier_arrive({_mbarrier(item.barriers, item.slot, names)});")


def _print_wait(item: MbarrierWait, names: KernelNames, out: Writer) -> None:
    parity = index_text(item.parity, names.pointers)
    out.line(f"cuts_mbarrier_wait({_mbarrier(item.barriers, item.slot, names)}, {parity});")


def _print_turn_wait(item: TurnWait, names: KernelNames, out: Writer) -> None:
    width, teams = WARPGROUP * LANES, names.kernel.teams > 1
    condition, group = (f"if ({names.kernel.turn.name} > 0) ", "team") if teams else ("", f"tid / {width}")
    out.line(condition + _TURN.format(way="sync", threads=2 * width, group=group))


def _print_turn_pass(item: TurnPass, names: KernelNames, out: Writer) -> None:
    width, teams, turn = WARPGROUP * LANES, names.kernel.teams, names.kernel.turn.name
    if teams > 1:
        following = _TURN.format(way="arrive", threads=2 * width, group=f"(team + 1) % {teams}")
        out.line(f"if ({turn} + 1 < turns) {following}")
        return
    groups = names.kernel.threads // width
    # Threads of a producer, too, come by the first one.
    limits = [f"tid >= {item.first * width}", f"tid < {item.last * width}"] if item.last - item.first < groups else []
    condition = f"if ({' && '.join(limits)}) " if limits else ""
    out.line(condition + _TURN.format(way="arrive", threads=2 * width, group=f"(tid / {width} + 1) % {groups}"))


def _emulate_fetch(item: BulkFetch, names: KernelNames, out: Writer) -> None:
    maps = {m.name: m for m in names.kernel.maps}
    with out.block(f"if ({guard_text(item.when, names.pointers)})" if item.when else ""):
        for copy in item.copies:
            _emulate_copy(copy, maps[copy.map], names, out)


def _emulate_copy(copy: BulkCopy, box: TensorMap, names: KernelNames, out: Writer) -> None:
    element, bits = Var("e", box.elements), _BITS[box.dtype.size]
    inside, place = [], []
    with out.block(f"for (int e = tid; e < {box.elements}; e += {names.kernel.threads})"):
        for n, where in enumerate(_element_places(copy, box, as_index(element))):
            out.line(f"const int c{n} = {index_text(where, names.pointers)};")
            inside.append(f"c{n} >= 0 && c{n} < {box.dims[n]}")
            stride = box.strides[n - 1] // box.dtype.size if n else 1
            place.append(f"c{n} * {stride}")
        to = names.place("shared", copy.buffer, copy.address + element)
        value = f"((__global const {bits}*){names.maps[copy.map]})[{' + '.join(place)}]"
        if box.rounded:
            value = f"as_uint({FUNCTIONS[box.rounded].c.format(f'as_float({value})')})"
        out.line(f"((__local {bits}*){copy.buffer})[{to}] = {' && '.join(inside)} ? {value} : 0;")


def _element_places(copy: BulkCopy, box: TensorMap, element: Index) -> list[Index]:
    """Return the coordinates of an element of a box along the dims of its map."""
    if box.pixels:
        channel, *places, image = _first_pixel(copy, box, element // box.box[0])
        moved = [place + offset for place, offset in zip(places, copy.coordinates[2:], strict=True)]
        return [channel + element % box.box[0], *moved, image]
    step, found = 1, []
    for start, extent in zip(copy.coordinates, box.box, strict=True):
        found.append(start + element // step % extent)
        step *= extent
    return found


def _emulate_wait(item: MbarrierWait, names: KernelNames, out: Writer) -> None:
    out.line(names.dialect.barrier)
    fetches = (f for producer in names.kernel.producer for f in bulk_fetches(producer.body))
    for fetch in (f for f in fetches if (f.barriers, f.slot) == (item.barriers, item.slot)):
        _emulate_fetch(fetch, names, out)
        out.line(names.dialect.barrier)


def _print_nothing(item: MbarrierInit | MbarrierArrive | TurnWait | TurnPass, names: KernelNames, out: Writer) -> None:
    """Print nothing: threads meet at barriers."""


_CUDA_PRINTERS: Mapping[type, Callable[[Any, KernelNames, Writer], None]] = {
    MbarrierInit: _print_init,
    BulkFetch: _print_fetch,
    MbarrierWait: _print_wait,
    MbarrierArrive: _print_arrival,
    TurnWait: _print_turn_wait,
    TurnPass: _print_turn_pass,
}
_OPENCL_PRINTERS: Mapping[type, Callable[[Any, KernelNames, Writer], None]] = {
    MbarrierInit: _print_nothing,
    BulkFetch: _emulate_fetch,
    MbarrierWait: _emulate_wait,
    MbarrierArrive: _print_nothing,
    TurnWait: _print_nothing,
    TurnPass: _print_nothing,
}
