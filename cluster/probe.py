"""Measurement of a machine: storage, links and a large matrix product.

Everything takes the path of a run: the same threads, direct access to files, pinned memory, compiled kernels. A
description has bandwidths of one GPU while all work, so resources that GPUs may share are measured for all of them at
once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from attrs import define, frozen

from ..backends import Device, Pointer, Transfers, find_target, open_device, open_transfers
from ..compile import build_graph, load_spec
from ..ir import CompileOptions, Graph, Node, UsageError
from .engine import SingleProcess
from .graphs import f32
from .plans import Machine
from .storage import (
    Arena,
    BoundPlan,
    Disk,
    HostPool,
    MappedFiles,
    Move,
    Mover,
    reserve,
    round_to_pages,
    storage_error,
)
from .storage_rate import SHARED_PART, storage_rate

#: Bytes of the file for each GPU's storage measurement, and rows and columns of the matrices that are multiplied.
BYTES, MATRIX_SIDE, CPU_MATRIX_SIDE = 1 << 30, 4096, 512
#: Pieces of a file that move one after another, and passes over the file at most.
_PARTS, _PASSES = 8, 8


def probe_machine(
    target: str = "auto", folder: str | os.PathLike[str] = ".", nbytes: int | None = None
) -> tuple[Machine, str]:
    """Measure this machine; return its description and a comment on it.

    Storage is that of `folder`. Storage and the link from the host are measured for all GPUs that PyTorch sees at once,
    and between the first two of them; where it sees one, the bandwidth between GPUs is that through the host. Products
    and memory are those of one GPU. Raises `UsageError` for a target without memory of its own, and for a file instead
    of the folder.
    """
    machine = find_target(target)
    if machine.dialect not in ("opencl", "cuda"):
        raise UsageError(f"target '{target}' has no memory of its own to probe", hint="use opencl or cuda")
    if Path(folder).exists() and not Path(folder).is_dir():
        raise UsageError(f"{folder}: expected a folder, found a file", hint="its storage is measured")
    device = open_device(machine)
    transfers = open_transfers(device)
    nbytes, count = nbytes or BYTES, _count(machine.dialect)
    host_link = _host_link(device, transfers, min(nbytes, 256 << 20))
    found = _Storage.measure(device, transfers, Path(folder), nbytes, count)
    side = CPU_MATRIX_SIDE if machine.dialect == "opencl" else MATRIX_SIDE
    flops = _flops(device, target, side)
    memory = float(str(device.describe().get("memory_bytes", 0)))
    link, together = _links(count)
    host_link = min(host_link, together or host_link)
    known = machine.PERF_peak
    comment = (
        f"Measured on {device.name.strip()}: {found.text(Path(folder).resolve(), count)},\n"
        f"pinned copies{f' of {count} GPUs at once' if together else ''}, a matrix product of side {side} by kernels of"
        " cuts; the peak is what is known of the target."
    )
    space = os.statvfs(folder)
    return (
        Machine(
            name=f"this machine ({count} x {machine.name})",
            nodes=1,
            gpus=count,
            peak=known,
            efficiency=min(1.0, flops / known),
            memory=memory,
            storage_read=found.read / count,
            storage_write=found.write / count,
            gpu_link=link or host_link,
            node_link=link or host_link,
            storage=float(space.f_bavail * space.f_frsize) / count or None,
            host_link=host_link,
        ),
        comment,
    )


def _rate(nbytes: int, run: Callable[[], None], repeats: int = 3) -> float:
    run()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    return nbytes * repeats / (time.perf_counter() - begin)


def _host_link(device: Device, transfers: Transfers, nbytes: int) -> float:
    host, place = transfers.allocate_pinned(nbytes), Pointer(device.allocate(nbytes))
    device.synchronize()
    return min(
        _rate(nbytes, lambda: transfers.upload(place, host)), _rate(nbytes, lambda: transfers.download(host, place))
    )


@frozen
class _Storage:
    """Bytes a second that a folder's storage reads and writes in total, of one stream alone, and whether past the page
    cache.
    """

    read: float
    write: float
    alone: float
    direct: bool

    def text(self, folder: Path, count: int) -> str:
        """Return a description of the measurement."""
        found = f"storage of {folder} {'past' if self.direct else 'through'} the page cache"
        if count == 1:
            return found
        shared = "shared: one" if self.read < SHARED_PART * count * self.alone else "not shared: one"
        return f"{found}, by {count} GPUs at once ({shared} alone reads {self.alone / 1e9:.3g} GB/s)"

    @classmethod
    def measure(cls, device: Device, transfers: Transfers, folder: Path, nbytes: int, count: int) -> _Storage:
        """Write and read files of random bytes, one for each GPU.

        They are removed at the end.
        """
        paths = [folder / f".cuts-probe-{os.getpid()}-{number}.bin" for number in range(count)]
        disks = [Disk(prepare=transfers.prepare) for _ in paths]
        part = round_to_pages(-(-nbytes // _PARTS))
        streams = [
            _Stream(p, d, Mover(d, transfers, HostPool(transfers), MappedFiles(transfers)), part)
            for p, d in zip(paths, disks, strict=True)
        ]
        try:
            place = Pointer(device.allocate(part))
            device.upload(place, np.random.default_rng(0).integers(0, 255, part, np.uint8))
            device.synchronize()
            for path in paths:
                reserve(path, _PARTS * part)

            def rate(chosen: list[_Stream], begin: Callable[[_Stream, Pointer], None]) -> float:
                def move() -> int:
                    for stream in chosen:
                        begin(stream, place)
                    for stream in chosen:
                        stream.wait()
                    return len(chosen) * part

                return storage_rate(SingleProcess(), move, _PASSES * _PARTS * part * len(chosen)).each

            for _ in range(_PARTS):  # each file is written completely
                for stream in streams:
                    stream.write(place)
                    stream.wait()
            written, read = rate(streams, _Stream.write), rate(streams, _Stream.read)
            alone = rate(streams[:1], _Stream.read) if count > 1 else read
            return cls(read, written, alone, all(disk.direct for disk in disks))
        except OSError as error:
            raise storage_error(error, paths[0], _PARTS * part) from error
        finally:
            for disk in disks:
                disk.close()
            for path in paths:
                path.unlink(missing_ok=True)


@define
class _Stream:
    """Transfers of one GPU's process with its own file: one piece after another."""

    path: Path
    disk: Disk
    mover: Mover
    part: int
    turn: int = 0
    under_way: Move | None = None

    def write(self, place: Pointer) -> None:
        """Begin to write the next piece."""
        self.under_way = self.mover.store(self.path, self.turn * self.part, self.part, place, "probe")
        self.mover.leaving.clear()
        self.turn = (self.turn + 1) % _PARTS

    def read(self, place: Pointer) -> None:
        """Begin to read the next piece."""
        self.under_way = self.mover.fetch(self.path, self.turn * self.part, self.part, place)
        self.turn = (self.turn + 1) % _PARTS

    def wait(self) -> None:
        """Wait for the piece.

        At the end of the file (through a page cache at once) wait until the data is on disk.
        """
        assert self.under_way is not None
        self.under_way.wait()
        if self.turn == 0 or not self.disk.direct:
            self.disk.sync()


def _flops(device: Device, target: str, side: int) -> float:
    spec = load_spec(())
    types = dict.fromkeys(("a", "b", "y"), f32(side, side))
    graph = Graph("product", ("a", "b"), ("y",), types, (Node("y", "matmul", ("a", "b"), ("y",)),))
    plan = build_graph(graph, spec, find_target(target), CompileOptions()).plan
    arena = Arena(device, float("inf"))
    bound = BoundPlan(plan, device, arena)
    places = {name: Pointer(arena.allocate(4 * side * side, name)) for name in ("a", "b", "y")}

    def run() -> None:
        bound.launch(places)
        device.synchronize()

    return 2.0 * side**3 * _rate(1, run)  # runs a second


def _count(dialect: str) -> int:
    """Return the number of GPUs that PyTorch sees."""
    if dialect != "cuda":
        return 1
    try:
        from .torch_engine import gpus
    except ImportError:
        return 1
    return gpus()


def _links(count: int) -> tuple[float | None, float | None]:
    """Return the bytes a second from one GPU to the next, and between the host and each while all copy; None where
    there is one.
    """
    if count == 1:
        return None, None
    from .torch_engine import copy_between, copy_to_all

    return copy_between(), copy_to_all(count)
