"""PyTorch calls of a profile's layers, over memory allocated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from attrs import frozen

from .tasks import LayerTask, Shape

#: Numbers in the memory of inputs and of weights: the largest of `MOST_ELEMENTS`, and filters of 2048 x 2048 x 5 x 5
#: with room to spare.
_INPUTS, _WEIGHTS = 160_000_000, 600_000_000


class RandomPool:
    """Random numbers on a device; tensors are views of them."""

    def __init__(self, torch: Any, device: str, inputs: int = _INPUTS, weights: int = _WEIGHTS) -> None:
        self._inputs = [torch.randn(inputs, device=device) for _ in range(2)]
        self._weights = torch.randn(weights, device=device)
        self.positive = torch.rand(8192, device=device) + 0.5

    def input(self, shape: Shape, number: int = 0) -> Any:
        """Return one of two separate inputs."""
        return self._inputs[number][: prod(shape)].view(shape)

    def weight(self, shape: Shape) -> Any:
        """Return weights."""
        return self._weights[: prod(shape)].view(shape)


@frozen
class LibraryCall:
    """Measured call: `run` executes it, `produce` writes its inputs.

    Inputs are written as by the operation before it.
    """

    run: Callable[[], Any]
    inputs: tuple[Any, ...]

    def produce(self) -> None:
        """Write the inputs, which leaves them in the cache where they fit."""
        for tensor in self.inputs:
            tensor.neg_()


def call_of(task: LayerTask, torch: Any, memory: RandomPool) -> LibraryCall:
    """Return a task as a call."""
    if task.op == "conv2d":
        return _conv2d(task.shape, torch, memory)
    if task.op == "linear":
        return _linear(task.shape, torch, memory)
    if task.op in ("max_pool", "average_pool"):
        return _pool(task, torch, memory)
    return _pointwise(task, torch, memory)


def _conv2d(shape: Shape, torch: Any, memory: RandomPool) -> LibraryCall:
    n, c, h, w, k, r, s, sh, sw, ph, pw, dilation, groups = shape
    x, f = memory.input((n, c, h, w)), memory.weight((k, c // groups, r, s))
    return LibraryCall(lambda: torch.nn.functional.conv2d(x, f, None, (sh, sw), (ph, pw), dilation, groups), (x,))


def _linear(shape: Shape, torch: Any, memory: RandomPool) -> LibraryCall:
    rows, inputs, outputs = shape
    x, f, b = memory.input((rows, inputs)), memory.weight((outputs, inputs)), memory.positive[:outputs]
    return LibraryCall(lambda: torch.nn.functional.linear(x, f, b), (x,))


def _pool(task: LayerTask, torch: Any, memory: RandomPool) -> LibraryCall:
    *image, window, stride, pad = task.shape
    x = memory.input(tuple(image))
    pool = torch.nn.functional.max_pool2d if task.op == "max_pool" else torch.nn.functional.avg_pool2d
    return LibraryCall(lambda: pool(x, window, stride, pad), (x,))


def _pointwise(task: LayerTask, torch: Any, memory: RandomPool) -> LibraryCall:
    n, c, _, _ = task.shape
    x, y = memory.input(task.shape), memory.input(task.shape, 1)
    channel, image = memory.positive[:c], memory.weight((n, c, 1, 1))
    functions = torch.nn.functional
    one: Mapping[str, Callable[[], Any]] = {
        "relu": lambda: functions.relu(x),
        "relu6": lambda: functions.hardtanh(x, 0.0, 6.0),
        "sigmoid": lambda: torch.sigmoid(x),
        "silu": lambda: functions.silu(x),
        "hardswish": lambda: functions.hardswish(x),
        "hardsigmoid": lambda: functions.hardsigmoid(x),
        "gelu": lambda: functions.gelu(x),
        "scale": lambda: torch.mul(x, image),
        "bias": lambda: x.add_(channel.view(1, c, 1, 1)),
        "batch_norm": lambda: functions.batch_norm(x, channel, channel, channel, channel),
        "global_average": lambda: functions.adaptive_avg_pool2d(x, 1),
    }
    two: Mapping[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, y),
        "multiply": lambda: torch.mul(x, y),
        "concat": lambda: torch.cat((x, y), 1),
    }
    return LibraryCall(one[task.op], (x,)) if task.op in one else LibraryCall(two[task.op], (y, x))
