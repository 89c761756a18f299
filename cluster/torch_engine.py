"""Exchange between processes through `torch.distributed`.

It uses NCCL between GPUs, Gloo between processes on the CPU. Every direction between two stages has a process
group of its own. On a GPU tensors are views of the runner's memory; elsewhere data passes through the host.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ..backends import Device, Pointer
from ..ir import BackendError, DType
from .engine import Wait

#: PyTorch's names of the summed element types.
_TYPES = {DType.F32: torch.float32, DType.BF16: torch.bfloat16}
#: Bytes of a copy that is timed.
_BYTES = 256 << 20


class _View:
    """Device memory in the form that PyTorch takes without a copy."""

    def __init__(self, place: Pointer, nbytes: int) -> None:
        address = place.address
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


class TorchEngine:
    """Engine over the process group that the environment describes.

    The variables are RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, as `torchrun` sets them.
    """

    def __init__(self, device: Device, stages: int, parts: int = 1, *, seconds: float = 300) -> None:
        self.device, self.stages, self.parts = device, stages, parts
        self._cuda = device.target.dialect == "cuda"
        backend = "nccl" if self._cuda else "gloo"
        try:
            if self._cuda:
                torch.cuda.set_device(
                    int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))) % torch.cuda.device_count()
                )
            if not dist.is_initialized():
                dist.init_process_group(backend, timeout=timedelta(seconds=seconds))
            self.rank, self.size = dist.get_rank(), dist.get_world_size()
            self._part = self.rank % parts
            self._stage, self._group = self.rank // parts % stages, self.rank // (parts * stages)
            groups = range(self.size // (stages * parts))
            # Every process makes every group, in the same order.
            peers = {
                (s, w): dist.new_group([self._rank(g, s, w) for g in groups])
                for s in range(stages)
                for w in range(parts)
            }
            joined = {
                (g, s): dist.new_group([self._rank(g, s, w) for w in range(parts)])
                for g in groups
                for s in range(stages)
            }
            self._peers, self._joined = peers[self._stage, self._part], joined[self._group, self._stage]
            self._ways = self._directions()
        except (RuntimeError, ValueError) as error:
            raise BackendError(
                f"torch.distributed does not start: {error}", hint="run the plan through torchrun"
            ) from error

    def _directions(self) -> dict[tuple[bool, int, int], Any]:
        """Make a process group for each direction between two neighbouring stages; return those of this group.

        A wait in one direction then never blocks the other, which two stages that send to each other would wait for.
        """
        found: dict[tuple[bool, int, int], Any] = {}
        chains = [(g, w) for g in range(self.size // (self.stages * self.parts)) for w in range(self.parts)]
        for group, part in chains:
            for stage in range(self.stages if self.stages > 1 else 0):
                following = (stage + 1) % self.stages
                ends = sorted((self._rank(group, stage, part), self._rank(group, following, part)))
                for way in ((False, stage, following), (True, following, stage)):
                    made = dist.new_group(ends)
                    if (group, part) == (self._group, self._part):
                        found[way] = made
        return found

    def _rank(self, group: int, stage: int, part: int) -> int:
        return (group * self.stages + stage) * self.parts + part

    def _tensor(self, place: Pointer, nbytes: int) -> Any:
        if self._cuda:
            return torch.as_tensor(_View(place, nbytes), device="cuda")
        host = np.empty(nbytes, np.uint8)
        self.device.download(host, place)
        return torch.from_numpy(host)

    def _back(self, tensor: Any, place: Pointer) -> None:
        if self._cuda:
            torch.cuda.current_stream().synchronize()
        else:
            self.device.upload(place, tensor.numpy())

    def _sum(self, place: Pointer, elements: int, dtype: DType, group: Any) -> None:
        tensor = self._tensor(place, elements * dtype.size)
        dist.all_reduce(tensor.view(_TYPES[dtype]), group=group)
        self._back(tensor, place)

    def sum(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Add up over the groups of this stage."""
        if self.size > self.stages * self.parts:
            self._sum(place, elements, dtype, self._peers)

    def join(self, place: Pointer, elements: int, dtype: DType) -> None:
        """Add up over the GPUs that share this stage's layers."""
        if self.parts > 1:
            self._sum(place, elements, dtype, self._joined)

    def _scalar(self, value: float, operation: Any) -> float:
        tensor = torch.tensor([value], dtype=torch.float64, device="cuda" if self._cuda else "cpu")
        dist.all_reduce(tensor, op=operation)
        return float(tensor.item())

    def total(self, value: float) -> float:
        """Add a number up over all processes."""
        return self._scalar(value, dist.ReduceOp.SUM)

    def minimum(self, value: int) -> int:
        """Return the least over all processes."""
        return int(self._scalar(float(value), dist.ReduceOp.MIN))

    def send(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> Wait:
        """Begin to send to another stage of this group."""
        tensor = self._tensor(place, nbytes)
        goal = self._rank(self._group, stage, self._part)
        work: Any = dist.isend(tensor, goal, group=self._ways[backward, self._stage, stage])

        def wait(kept: Any = tensor) -> None:
            work.wait()
            if self._cuda:
                torch.cuda.current_stream().synchronize()
            del kept

        return wait

    def receive(self, place: Pointer, nbytes: int, stage: int, *, backward: bool) -> None:
        """Receive from another stage of this group."""
        tensor, source = self._tensor(place, nbytes), self._rank(self._group, stage, self._part)
        dist.recv(tensor, source, group=self._ways[backward, stage, self._stage])
        self._back(tensor, place)

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()


def gpus() -> int:
    """Return the number of GPUs, at least 1."""
    return max(1, torch.cuda.device_count())


def copy_between() -> float:
    """Return the bytes a second from the first GPU to the second."""
    source = torch.empty(_BYTES, dtype=torch.uint8, device="cuda:0")
    goal = torch.empty(_BYTES, dtype=torch.uint8, device="cuda:1")
    return _BYTES / _seconds(lambda: goal.copy_(source), 2)


def copy_to_all(count: int) -> float:
    """Return the bytes a second between pinned memory and each GPU.

    All copy at once; the slower direction counts.
    """
    hosts = [torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(count)]
    devices = [torch.empty(_BYTES, dtype=torch.uint8, device=f"cuda:{number}") for number in range(count)]

    def upload() -> None:
        for device, host in zip(devices, hosts, strict=True):
            device.copy_(host, non_blocking=True)

    def download() -> None:
        for device, host in zip(devices, hosts, strict=True):
            host.copy_(device, non_blocking=True)

    return _BYTES / max(_seconds(upload, count), _seconds(download, count))


def _seconds(run: Callable[[], object], count: int, repeats: int = 5) -> float:
    """Return the seconds of an operation of the first GPUs, without its first run."""

    def wait() -> None:
        for number in range(count):
            torch.cuda.synchronize(number)

    run()
    wait()
    begin = time.perf_counter()
    for _ in range(repeats):
        run()
    wait()
    return (time.perf_counter() - begin) / repeats
