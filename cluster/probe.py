"""Measuring a machine: storage to GPU and back, host to GPU, GPU to GPU, and how fast a large matrix product of ours
runs.

Everything goes the way that a run takes: the same threads, direct access to files, pinned memory, kernels compiled by
us.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..backends import Device, Pointer, Transfers, find_target, open_device, open_transfers
from ..compile import build_graph, load_spec
from ..ir import CompileOptions, Graph, Node, UsageError
from .blocks import f32
from .bound import BoundPlan
from .buffers import Arena, HostPool
from .describe import Machine
from .disk import Disk
from .layer_files import paged, reserve, storage_error
from .mover import Mover

#: Bytes that are moved through storage, and rows and columns of the matrices that are multiplied.
BYTES, SIDE, SIDE_CPU = 512 << 20, 4096, 512


def probe_machine(
    target: str = "opencl", folder: str | os.PathLike[str] = ".", nbytes: int = BYTES
) -> tuple[Machine, str]:
    """Measure this machine; return its description and a comment that says how. Storage is that of `folder`.

    What is found of one GPU stands for all that the target has; bandwidth between GPUs is measured where PyTorch sees
    several, else it is the bandwidth through the host. Raises `UsageError` for a target without memory of its own.
    """
    machine = find_target(target)
    if machine.dialect not in ("opencl", "cuda"):
        raise UsageError(f"target '{target}' has no memory of its own to probe", hint="use opencl or cuda")
    device = open_device(machine)
    transfers = open_transfers(device)
    host_link = _host_link(device, transfers, min(nbytes, 256 << 20))
    read, write, direct = _storage(device, transfers, Path(folder), nbytes)
    flops = _flops(device, target, SIDE_CPU if machine.dialect == "opencl" else SIDE)
    memory = float(str(device.describe().get("memory_bytes", 0)))
    count, link = _gpus(machine.dialect)
    known = machine.PERF_peak
    comment = (
        f"Measured on {device.name.strip()}: storage of {Path(folder).resolve()} "
        f"{'past' if direct else 'through'} the page cache, pinned copies,\n"
        f"a matrix product of side {SIDE_CPU if machine.dialect == 'opencl' else SIDE} by kernels of cuts; "
        "the peak is what is known of the target."
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
            storage_read=read,
            storage_write=write,
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
    host, place = transfers.pinned(nbytes), Pointer(device.allocate(nbytes))
    device.synchronize()
    return min(
        _rate(nbytes, lambda: transfers.upload(place, host)), _rate(nbytes, lambda: transfers.download(host, place))
    )


def _storage(device: Device, transfers: Transfers, folder: Path, nbytes: int) -> tuple[float, float, bool]:
    """Write and read a file of random bytes; it is removed at the end."""
    path = folder / f".cuts-probe-{os.getpid()}.bin"
    disk = Disk(prepare=transfers.prepare)
    mover = Mover(disk, transfers, HostPool(transfers))
    part = paged(nbytes // 8)
    try:
        reserve(path, 8 * part)
        place = Pointer(device.allocate(part))
        device.upload(place, np.random.default_rng(0).integers(0, 255, part, np.uint8))
        device.synchronize()

        def write() -> None:
            for number in range(8):
                mover.store(path, number * part, part, place, number)
            mover.drain()
            disk.sync()

        def read() -> None:
            for number in range(8):
                mover.fetch(path, number * part, part, place).wait()

        written = _rate(8 * part, write, 1)
        found = _rate(8 * part, read, 2)
        return found, written, disk.direct
    except OSError as error:
        raise storage_error(error, path, 8 * part) from error
    finally:
        disk.close()
        path.unlink(missing_ok=True)


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


def _gpus(dialect: str) -> tuple[int, float | None]:
    """Return how many GPUs there are, and the bytes a second from one to the next where PyTorch can copy
    between two.
    """
    if dialect != "cuda":
        return 1, None
    try:
        from .torch_engine import copy_between
    except ImportError:
        return 1, None
    return copy_between()
