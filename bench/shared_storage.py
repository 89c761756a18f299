"""Whether a run leaves storage idle: two processes on a CPU whose reads share a fixed rate.

    python bench/shared_storage.py --rate 12e6 --alone 9e6 --wp 2

Reads of both processes take their turns at so many bytes a second together, and one process gets at most `--alone` of
them. A mini-batch of inference reads all weights, so it can not take less than these over the rate; the row says how
much more it takes, and what the processes did meanwhile. Nothing of it is a figure of a machine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

#: Bytes of a request: layers here are small.
PIECE = 1 << 16


class SharedStorage:
    """Reads that take their turns; `os` in the eyes of `cluster/disk.py`. The time at which the storage is free again
    lies in a file.
    """

    def __init__(self, clock: Path, rate: float, alone: float) -> None:
        self.file, self.rate, self.alone = os.open(clock, os.O_RDWR | os.O_CREAT), rate, alone
        self.lock, self.mine = threading.Lock(), 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def preadv(self, file: int, buffers: list[Any], start: int) -> int:
        """Read when it is this read's turn."""
        nbytes = sum(len(buffer) for buffer in buffers)
        with self.lock:
            fcntl.flock(self.file, fcntl.LOCK_EX)
            now = time.time()
            (free,) = struct.unpack("d", os.pread(self.file, 8, 0) or bytes(8))
            end = max(now, free) + nbytes / self.rate
            os.pwrite(self.file, struct.pack("d", end), 0)
            fcntl.flock(self.file, fcntl.LOCK_UN)
            self.mine = max(self.mine, now) + nbytes / self.alone
            end = max(end, self.mine)
        found = os.preadv(file, buffers, start)
        time.sleep(max(0.0, end - time.time()))
        return found


def work(arguments: argparse.Namespace) -> None:
    """Be one of the processes."""
    from cuts.backends import Device
    from cuts.cluster import disk
    from cuts.cluster.batches import random_batches
    from cuts.cluster.describe import Machine, Transformer
    from cuts.cluster.plan_file import ClusterPlan
    from cuts.cluster.running import Runner, traffic
    from cuts.cluster.torch_engine import TorchEngine
    from cuts.cluster.ways import Way

    root = Path(arguments.folder)
    setattr(disk, "os", SharedStorage(root / "clock", arguments.rate, arguments.alone))  # noqa: B010
    for module in (disk, traffic):
        setattr(module, "PIECE", PIECE)  # noqa: B010
    model = Transformer("shared", arguments.layers, 256, 4, 16, arguments.batch, precision="single")
    way = Way(1, arguments.wp, 2 // arguments.wp, "PR", 1)
    plan = ClusterPlan(model, Machine("here", 1, 2, 1e10, 1.0, 1e12, 1e9, 1e9, 1e9, 1e9), way, False)
    engines: list[TorchEngine] = []

    def engine(device: Device) -> TorchEngine:
        engines.append(TorchEngine(device, way.p, way.wp))
        return engines[-1]

    runner = Runner(
        plan,
        root / "model",
        engine=engine,
        batches=random_batches(model, 1, 0),
    )
    for number in range(arguments.steps + 1):
        runner.infer(number)
        if number == 0:  # kernels were loaded meanwhile
            runner.report = type(runner.report)()
    report, nbytes = runner.report, runner.store.weights.nbytes * len(runner.names)
    least = max(2 * nbytes / arguments.rate, nbytes / arguments.alone)
    parts = {"kernels": report.compute, "sums": report.exchange, "waiting": report.waiting, "storage": report.storage}
    taken = sum(report.seconds) / arguments.steps
    row = {"wp": way.wp, "p": way.p, "least": least, "taken": taken, "share": least / taken}
    if runner.engine.rank == 0:
        print(json.dumps(row | {name: value / arguments.steps for name, value in parts.items()}), flush=True)
    runner.close()
    engines[-1].close()


def main() -> None:
    """Start two processes and wait for them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=12e6, help="bytes a second of both (default 12e6)")
    parser.add_argument("--alone", type=float, default=1e12, help="bytes a second of one process at most")
    parser.add_argument("--wp", type=int, default=2, choices=(1, 2), help="GPUs that share a layer, else two stages")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder:
        work(arguments)
        return
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        names = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, *sys.argv[1:], "--folder", folder]
        started = [
            subprocess.Popen(command, env=os.environ | names | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(2)
        ]
        for process in started:
            process.wait()


if __name__ == "__main__":
    main()
