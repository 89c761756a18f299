"""PyTorch's distributed wrappers in two processes: losses of eager."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.compile.torch_backend import cuts_backend
from cuts.frontends.torch.dynamo_backend.dynamo import UncompiledWarning
from cuts.tests.needs import needs_opencl

nn = torch.nn
PROCESSES, STEPS = 2, 2


class Block(nn.Module):
    """A residual pair of dense layers, larger than a bucket of DDP."""

    def __init__(self, width: int = 96, inner: int = 1600) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Any) -> Any:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    """Blocks and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block()]), nn.Linear(96, 10)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def data_parallel(net: Any, mesh: Any, compile_module: Callable[[Any], Any]) -> Any:
    """Average gradients by buckets, at which PyTorch divides the captured graph."""
    return compile_module(nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1.1))


def parameter_shards(net: Any, mesh: Any, compile_module: Callable[[Any], Any]) -> Any:
    """Gather the parameters of each block before it runs (FSDP2)."""
    from torch.distributed.fsdp import fully_shard

    for number, block in enumerate(net.blocks):
        net.blocks[number] = fully_shard(compile_module(block), mesh=mesh)
    return fully_shard(net, mesh=mesh)


def tensor_parallel(net: Any, mesh: Any, compile_module: Callable[[Any], Any]) -> Any:
    """Divide layers by columns, then rows; captured graphs call collectives."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    ways = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in net.blocks:
        parallelize_module(block, mesh, ways)
    return compile_module(net)


WAYS = {"data": data_parallel, "shards": parameter_shards, "tensors": tensor_parallel}


def losses(way: str, rank: int, mesh: Any, compile_module: Callable[[Any], Any]) -> list[float]:
    """Return the losses of some steps; tensor parallel processes share their data."""
    torch.manual_seed(0)
    net = WAYS[way](Net(), mesh, compile_module)
    optimiser, found = torch.optim.SGD(net.parameters(), lr=0.1), []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step if way == "tensors" else 10 * step + rank)
        x, y = torch.randn(8, 96, generator=generator), torch.randint(0, 10, (8,), generator=generator)
        loss = nn.functional.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def train(rank: int, way: str, port: int, folder: str) -> None:
    """Train eager and compiled; write the captured modules and the largest difference."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (PROCESSES,))
    modules: list[int] = []

    def backend(module: Any, examples: Any) -> Any:
        modules.append(len(module.graph.nodes))
        return cuts_backend(module, examples)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UncompiledWarning)
        eager = losses(way, rank, mesh, lambda module: module)
        ours = losses(way, rank, mesh, lambda module: torch.compile(module, backend=backend))
    Path(folder, str(rank)).write_text(f"{len(modules)} {max(abs(a - b) for a, b in zip(eager, ours, strict=True))}")
    torch.distributed.destroy_process_group()


@needs_opencl
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.parametrize(("way", "captured"), [("data", 2), ("shards", 1), ("tensors", 1)])
def test_losses_are_those_of_eager(way: str, captured: int, tmp_path: Path) -> None:
    """PyTorch divides the graph of DDP at its buckets."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(train, (way, port, str(tmp_path)), PROCESSES)
    for rank in range(PROCESSES):
        modules, difference = (tmp_path / str(rank)).read_text().split()
        assert int(modules) >= captured
        assert float(difference) < 1e-5
