"""Calls of a workload in PyTorch and XLA, with their errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib import import_module
from time import perf_counter
from typing import Any

from cuts.backends.device import Timing

from .models import Application, Made

#: Rounds of a timing.
ROUNDS = 7


def autocast(torch: Any, precision: str) -> Any:
    """Return the context of calls in a precision: autocast of half types."""
    half: Mapping[str, Any] = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return torch.autocast("cuda", half.get(precision, torch.float16), enabled=precision in half)


def on_gpu(torch: Any, model: Application, made: Made, last: bool = False) -> Made:
    """Return network and inputs on the GPU, in an order of channels."""
    network, inputs = made
    if not model.images:
        return network.to("cuda"), tuple(x.to("cuda") for x in inputs)
    form = torch.channels_last if last else torch.contiguous_format
    return network.to("cuda", memory_format=form), tuple(x.to("cuda", memory_format=form) for x in inputs)


def exact(torch: Any, made: Made, samples: int) -> Any:
    """Return double-precision results of the first samples.

    The network is restored.
    """
    network, inputs = made
    network.to("cuda").double()
    given = [x[:samples].to("cuda") for x in inputs]
    with torch.no_grad():
        found = first(network(*(x.double() if x.is_floating_point() else x for x in given))).cpu()
    network.float()
    torch.cuda.empty_cache()
    return found


def first(result: Any) -> Any:
    """Return the first tensor of a result."""
    return result[0] if isinstance(result, (tuple, list)) else result


def error_of(found: Any, wanted: Any) -> float:
    """Return the greatest error, relative to the largest exact value.

    Samples without exact values are left out.
    """
    seen = found[: len(wanted)].detach().cpu().double()
    return float((seen - wanted).abs().max() / wanted.abs().max())


#: Turns of a loop, where one of them takes a millisecond or longer; shorter ones turn more often.
TURNS, MAX_TURNS = 20, 400


def import_jax() -> tuple[Any, Any]:
    """Return JAX, set to strict fp32, and torchax's module of exports."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's contenders need memory, too
    jax, export = import_module("jax"), import_module("torchax.export")
    jax.config.update("jax_default_matmul_precision", "highest")  # by default f32 is multiplied as TF32
    return jax, export


class Compiled:
    """Program compiled by XLA as a loop; `result` is the first."""

    def __init__(self, program: Any, inputs: tuple[Any, ...]) -> None:
        jax, export = import_jax()
        self.jax = jax
        state, function = export.exported_program_to_jax(program)
        self.state = jax.device_put(state)
        self.inputs = jax.device_put(tuple(x.numpy() for x in inputs))

        def turns(count: Any, state: Any, given: tuple[Any, ...]) -> Any:
            def turn(_: Any, carried: tuple[tuple[Any, ...], Any]) -> tuple[tuple[Any, ...], Any]:
                given, _ = carried
                found = first(function(state, given))
                # Zero times a float is no constant, as the float may be NaN: no turn can be left out.
                nothing = 0 * found.ravel()[0]
                return tuple(x + nothing.astype(x.dtype) for x in given), found

            made = jax.eval_shape(lambda: first(function(state, given)))
            return jax.lax.fori_loop(0, count, turn, (given, jax.numpy.zeros(made.shape, made.dtype)))[1]

        self._loop = jax.jit(turns)
        self.result = jax.block_until_ready(self.loop(1))

    def loop(self, count: int) -> Any:
        """Return the last of some calls' results, perhaps before it is there."""
        return self._loop(count, self.state, self.inputs)

    def time_loop(self) -> Timing:
        """Return the time of an iteration of a repeated call."""
        return time_turns(self.jax, self.loop)


def time_turns(jax: Any, loop: Callable[[int], object]) -> Timing:
    """Return the time of a turn of a loop of XLA."""

    def seconds(count: int) -> float:
        start = perf_counter()
        jax.block_until_ready(loop(count))
        return perf_counter() - start

    seconds(1)
    count = min(MAX_TURNS, max(TURNS, int(TURNS * 1e-3 / max(seconds(1), 1e-6))))
    return Timing(tuple(seconds(count) / count for _ in range(ROUNDS)))
