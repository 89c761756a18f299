"""XLA as a contender: the exported program as a function of JAX, which torchax makes of it, compiled in strict fp32.

torchax and JAX are not among the extras: what they make of a program runs in no other place. A call from Python takes
longer than a short network, and a recorded graph of XLA's calls cannot be had from outside, so that a loop is timed
that XLA itself runs, each turn of which begins with what the one before left; and calls that follow one another.
The faster one counts.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any

from .torch_calls import CallTime

ROUNDS = 7
#: Turns of a loop, where one of them takes a millisecond or longer; shorter ones turn more often.
TURNS, MOST = 20, 400


class Compiled:
    """A program as XLA compiled it: `call` returns its results, `loop` runs it so many times."""

    def __init__(self, program: Any, inputs: tuple[Any, ...]) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch's contenders need memory, too
        jax, export = import_module("jax"), import_module("torchax.export")
        jax.config.update("jax_default_matmul_precision", "highest")  # by default f32 is multiplied as TF32
        self.jax = jax
        state, function = export.exported_program_to_jax(program)
        self.state = jax.device_put(state)
        self.inputs = jax.device_put(tuple(x.numpy() for x in inputs))
        self._call = jax.jit(function)

        def turns(count: Any, state: Any, given: tuple[Any, ...]) -> Any:
            def turn(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
                # Zero times a float is no constant, as the float may be NaN: no turn can be left out.
                nothing = 0 * function(state, given)[0].ravel()[0]
                return tuple(x + nothing.astype(x.dtype) for x in given)

            return jax.lax.fori_loop(0, count, turn, given)

        self._loop = jax.jit(turns)

    def call(self) -> Any:
        """Return the results of a call, which may not be there yet."""
        return self._call(self.state, self.inputs)

    def loop(self, count: int) -> Any:
        """Return what is left of the inputs behind so many turns."""
        return self._loop(count, self.state, self.inputs)

    def timed(self, run: Callable[[int], Any]) -> CallTime:
        """Return the time of a turn of what runs so many."""

        def seconds(count: int) -> float:
            start = perf_counter()
            self.jax.block_until_ready(run(count))
            return perf_counter() - start

        seconds(1)
        count = min(MOST, max(TURNS, int(TURNS * 1e-3 / max(seconds(1), 1e-6))))
        samples = [seconds(count) / count * 1e3 for _ in range(ROUNDS)]
        low, _, high = statistics.quantiles(samples, n=4)
        middle = statistics.median(samples)
        return CallTime(middle, (high - low) / middle)

    def one_by_one(self, count: int) -> Any:
        """Return the results of the last of so many calls that follow one another."""
        for _ in range(count - 1):
            self.call()
        return self.call()
