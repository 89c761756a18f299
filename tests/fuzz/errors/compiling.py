"""Compilation of a random graph with drawn settings, and its exception.

A graph that its declarations accept compiles, or is refused by a `CutsError`: any other exception is a finding, and so
is an error of a stage, which a legal graph should not meet.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args
from unittest import mock

import cuts
import numpy as np
from attrs import asdict, evolve, frozen
from cuts.backends.devices import find_target
from cuts.compile.driver import RunPasses, build_graph, compile_model, compile_unmeasured
from cuts.compile.loading import Spec
from cuts.frontends.graph_json import graph_to_json
from cuts.ir import precisions_of
from cuts.ir.compiled import CompileOptions, Mode
from cuts.ir.errors import CutsError, InternalError, PassError, VerifyError
from cuts.ir.graph import Graph
from cuts.ir.machine import PrecisionName, Target
from cuts.ops import Registry
from cuts.passes import place_tensors
from cuts.passes.fusion import Programs
from cuts.training import Training

from ...fusion.build import reorder_randomly
from ...kernels.cases import ByModel
from ..chance import Chance
from .growing import grow_graph

TARGETS = ("opencl", "cuda:sm_75", "cuda:sm_80", "cuda:sm_90")
MODES: tuple[Mode, ...] = get_args(Mode)
PRECISIONS: tuple[PrecisionName, ...] = ("fp32", "tf32", "fp16")
#: Percentages of compilations that differentiate the graph, limit the memory, store tensors in random orders, and
#: recompute contractions for any cache size.
TRAINED_PERCENT, LIMITED_PERCENT, ORDERED_PERCENT, RECOMPUTED_PERCENT = 15, 10, 30, 40


@frozen
class CompileSettings:
    """Compile settings; `seed` is that of random decisions and orders.

    `deciding_kernels` names the selector.
    """

    target: str
    mode: Mode
    precision: PrecisionName
    deciding: str = "model"
    trained: bool = False
    memory: int | None = None
    ordered: bool = False
    recomputed: bool = False
    seed: int = 0

    @property
    def machine(self) -> Target:
        """The target; one whose cache holds nothing where contractions are recomputed."""
        target = find_target(self.target)
        return evolve(target, l2_bytes=1) if self.recomputed else target

    def run_passes(self) -> RunPasses:
        """Return the passes, with decisions that replace measurements."""
        if self.deciding == "model":
            return compile_unmeasured
        costs = ByModel(self.machine) if self.deciding == "measured" else Chance(self.machine, seed=self.seed)
        return costs.compile


def draw_settings(seed: int, number: int) -> CompileSettings:
    """Return the settings of a graph of a seed.

    Targets, modes and precisions take turns.
    """
    rng = np.random.default_rng([seed, number, 5])
    target = TARGETS[number % len(TARGETS)]
    asked = PRECISIONS[number // len(TARGETS) // len(MODES) % len(PRECISIONS)]
    percent = lambda: int(rng.integers(100))  # noqa: E731
    return CompileSettings(
        target,
        MODES[number // len(TARGETS) % len(MODES)],
        asked if asked in precisions_of(find_target(target)) else "fp32",
        str(rng.choice(("model", "model", "measured", "chance"))),
        percent() < TRAINED_PERCENT,
        int(10 ** rng.uniform(3, 6)) if percent() < LIMITED_PERCENT else None,
        percent() < ORDERED_PERCENT,
        percent() < RECOMPUTED_PERCENT,
        number,
    )


@frozen
class Outcome:
    """Outcome of a compilation.

    It is empty, "refused" with a reason, or the kind of a finding with its traceback.
    """

    settings: CompileSettings
    kind: str = ""
    text: str = ""

    @property
    def is_finding(self) -> bool:
        """Return whether the compilation broke the law."""
        return self.kind not in ("", "refused")

    def record(self, graph: Graph) -> dict[str, Any]:
        """Return the outcome of a graph as JSON values."""
        return {**asdict(self.settings), "kind": self.kind, "text": self.text, "graph": graph_to_json(graph)}


def compile_number(seed: int, number: int) -> tuple[Graph, Outcome]:
    """Compile graph `number` of a seed."""
    graph = grow_graph(seed, number)
    return graph, compile_one(graph, draw_settings(seed, number))


def compile_one(graph: Graph, settings: CompileSettings) -> Outcome:
    """Compile a graph and return how that ended."""
    try:
        with drawn_orders(settings):
            _compile(graph, settings)
            return Outcome(settings)
    except (PassError, VerifyError) as error:
        if settings.memory is not None and "bytes" in str(error):
            return Outcome(settings, "refused", str(error))  # less memory than any order of the graph takes
        cause = error.__cause__ if isinstance(error, InternalError) and error.__cause__ is not None else error
        return Outcome(settings, type(cause).__name__, traceback.format_exc())
    except CutsError as error:
        return Outcome(settings, "refused", str(error))
    except Exception as error:
        return Outcome(settings, type(error).__name__, traceback.format_exc())


def _compile(graph: Graph, settings: CompileSettings) -> None:
    """Compile a graph, or its gradient where the settings say so: to a plan on the host, to sources elsewhere."""
    spec = Spec(Registry.builtin())
    if settings.trained and (loss := next((v for v in graph.outputs if graph.types[v].dtype.is_float), "")):
        made = _gradient(graph, loss)
        graph, spec = made.graph, made.spec
    options = CompileOptions(mode=settings.mode, precision=settings.precision, memory=settings.memory, verify=True)
    target, run = settings.machine, settings.run_passes()
    if target.on_host:
        build_graph(graph, spec, target, options, run)
    else:
        compile_model(graph, spec, target, options, run)  # a plan would need NVIDIA's compiler


def _gradient(graph: Graph, loss: str) -> Training:
    """Return the gradient of a value with respect to every float that the graph is given and that it depends on."""
    needed = {loss}
    for node in reversed(graph.nodes):
        needed.update(node.operands if needed.intersection(node.outputs) else ())
    wrt = [v for v in graph.inputs if v in needed and graph.types[v].dtype.is_float]
    given = evolve(graph, inputs=(*graph.inputs, "given"), types={**graph.types, "given": graph.types[loss]})
    return cuts.grad(given, loss=loss, wrt=wrt, given="given")


@contextmanager
def drawn_orders(settings: CompileSettings) -> Iterator[None]:
    """Store tensors between kernels in random dim orders where the settings ask."""

    def orders(programs: Programs, *_: object, **__: object) -> Programs:
        return reorder_randomly(programs, np.random.default_rng(settings.seed))

    if not settings.ordered:
        yield
        return
    with mock.patch.object(place_tensors, "choose_layouts", orders):
        yield
