"""Contenders of the evaluation: compilation, execution, timing.

The time of a workload is divided by kind of kernel.

A kernel is *complex* where it sums products of tensors over more places than a window has (convolutions, matrix
products, without depthwise convolutions), else *simple*; either is fused where it computes several operations (section
7.3 of DeepCuts). Kernels of libraries are classified by name and never count as fused.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
from attrs import evolve, field, frozen
from cuts.backends import find_target
from cuts.backends.device import Timing
from cuts.bench.operators.timing import capture_graph, set_precision, time_calls
from cuts.bench.tools.records import Row
from cuts.compile import CompiledPlan, compile_model, load_model, load_spec, plan_of
from cuts.compile.driver import tune_graph
from cuts.ir import Budget, CompileOptions, CutsError, FusedGroup, Mode, is_contraction, parse_ir
from cuts.search import Settings, summary_values, tuning_session

from .models import Made, ModelWorkload, Task
from .peer_calls import Compiled, autocast, error_of, exact, first, on_gpu
from .training import train, train_as_one_graph, train_by_xla

#: Samples that are compared with double precision.
SAMPLES = 8
#: Models and batches whose time is divided by kind of kernel, as in Figure 6.
BREAKDOWN_CASES = (("ResNet-50", 1), ("BERT-base", 1))


@frozen
class ModelCase:
    """Workload for all contenders; `budget` are the seconds of our search."""

    workload: ModelWorkload
    made: Made
    torch: Any
    budget: float
    _known: dict[str, Any] = field(factory=dict, init=False, eq=False)

    @property
    def program(self) -> Any:
        """Exported program, with parameters in their place at the export.

        The network shares them. Channels of images come first.
        """
        network = self.made[0].to("cpu")  # a contender may have taken them to the GPU
        if "program" not in self._known:
            plain = network.to(memory_format=self.torch.contiguous_format) if self.workload.model.images else network
            with warnings.catch_warnings():  # exporters warn of their own insides
                warnings.simplefilter("ignore")
                self._known["program"] = self.torch.export.export(plain, self.made[1])
        return self._known["program"]

    def place(self, last: bool) -> Made:
        """Return the network and inputs on the GPU; set PyTorch's precision."""
        set_precision(self.torch, self.workload.precision)
        return on_gpu(self.torch, self.workload.model, self.made, last)

    def layout(self, last: bool) -> Row:
        """Return the field of a row that names the order of channels."""
        return {"layout": f"channels {'last' if last else 'first'}"} if self.workload.model.images else {}

    def call(self, network: Any, given: tuple[Any, ...]) -> Callable[[], Any]:
        """Return a call of the network in the precision."""

        def run() -> Any:
            with autocast(self.torch, self.workload.precision):
                return network(*given)

        return run

    @property
    def options(self) -> CompileOptions:
        """Options of a compilation in the precision."""
        return CompileOptions(precision=self.workload.precision)

    @property
    def divided(self) -> bool:
        """Return whether its time is divided by kind of kernel."""
        return (self.workload.model.name, self.workload.batch) in BREAKDOWN_CASES

    @property
    def wanted(self) -> Any:
        """The exact result of the first samples."""
        if "wanted" not in self._known:
            self._known["wanted"] = exact(self.torch, self.made, SAMPLES)
        return self._known["wanted"]


def time_untuned(case: ModelCase, mode: Mode = "mixed") -> Row:
    """Time the cost model's plan, without measurements, earlier searches or packs."""
    start, spec, target = perf_counter(), load_spec([]), find_target("cuda")
    graph = load_model(case.program, spec, None, ())
    compiled = compile_model(graph, spec, target, evolve(case.options, mode=mode))
    plan = plan_of(compiled, graph, spec, target, case.workload.precision)
    return {**_time_plan(case, plan), "seconds": perf_counter() - start}


def ours(case: ModelCase, mode: Mode, fresh: bool = False) -> Row:
    """Tune and time a plan of ours within the budget.

    Installed libraries take part in mode `mixed`, as users have it; a `fresh` search ignores earlier ones.
    """
    program = case.program  # making it is the exporter's work
    start, budget, spec = perf_counter(), Budget.of(case.budget), load_spec([])
    with budget.stage("import"):
        graph = load_model(program, spec, None, ())
    options = evolve(case.options, mode=mode, budget=case.budget, begun=budget)
    with tuning_session(
        find_target("cuda"), budget=budget, settings=Settings(libraries=True), evaluate=mode == "mixed", fresh=fresh
    ) as session:
        plan = tune_graph(graph, spec, session.target, options, session)
        values = summary_values(session)
    seconds, kept = perf_counter() - start, ("cached", "kernels", "sum of kernels", "compiled", "timed", "elapsed")
    facts = {"budget_s": case.budget, "seconds": seconds, "search": {name: values[name] for name in kept}}
    return {**_time_plan(case, plan), **facts, **_breakdown(case, lambda: of_plan(plan))}


def afresh(case: ModelCase, seconds: float) -> Row:
    """Tune and time a plan within a budget, without earlier results."""
    kept = os.environ.get("CUTS_CACHE_DIR")
    with TemporaryDirectory() as folder:
        os.environ["CUTS_CACHE_DIR"] = folder
        try:
            return ours(evolve(case, budget=seconds), "mixed", fresh=True)
        finally:
            os.environ.pop("CUTS_CACHE_DIR") if kept is None else os.environ.update(CUTS_CACHE_DIR=kept)


def _time_plan(case: ModelCase, plan: CompiledPlan) -> Row:
    """Return the time of a plan, its error, how many launches it has, and how many of each library."""
    inputs = {n: x.numpy() for n, x in zip(plan.inputs, case.made[1], strict=True)}
    found = case.torch.from_numpy(next(iter(plan.run(inputs).values())))
    timed = _timed_row(plan.session.time_compute(warmup=5, repeats=50))
    row = timed | {"error": error_of(found, case.wanted)}
    called = Counter(str(group["library"]) for group in plan.plan.groups if "library" in group)
    return row | {"launches": plan.plan.launch_count} | ({"libraries": dict(called)} if called else {})


def time_eager(case: ModelCase) -> Row:
    """Time PyTorch's own kernels as a captured graph, channels first and last.

    The faster order counts.
    """
    orders = (False, True) if case.workload.model.images else (False,)
    return min((_time_order(case, last) for last in orders), key=lambda row: float(row["ms"]))


def _time_order(case: ModelCase, last: bool) -> Row:
    torch, start = case.torch, perf_counter()
    call = case.call(*case.place(last))
    with torch.no_grad():
        timed = _timed_row(time_calls(torch, capture_graph(torch, [call])))
        row = timed | {"seconds": perf_counter() - start, "error": error_of(first(call()), case.wanted)}
        return row | case.layout(last) | _breakdown(case, lambda: of_profile(torch, call))


def _timed_row(timing: Timing) -> Row:
    return {"ms": timing.median * 1e3, "spread": timing.spread}


def _breakdown(case: ModelCase, find: Callable[[], dict[str, float]]) -> Row:
    """Return where the time of a case goes; a profiler that fails costs no row."""
    if not case.divided:
        return {}
    try:
        return {"breakdown": find()}
    except (RuntimeError, AttributeError, CutsError) as error:
        return {"breakdown_failure": str(error)[:300]}


def time_compiled(case: ModelCase, last: bool, **options: Any) -> Row:
    """Time `torch.compile` with some options.

    Calls that are captured nowhere else are timed one by one and as a captured graph.
    """
    torch = case.torch
    torch._dynamo.reset()
    network, given = case.place(last)
    with torch.no_grad():
        start = perf_counter()
        call = case.call(torch.compile(network, **options), given)
        error = error_of(first(call()), case.wanted)
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        row = {"error": error, **case.layout(last), "seconds": perf_counter() - start}
        timed = _timed_row(time_calls(torch, call))
        if options.get("mode"):
            return row | timed
        captured = _timed_row(time_calls(torch, capture_graph(torch, [call])))
    return row | captured | {"calls_ms": timed["ms"]}


def by_xla(case: ModelCase) -> Row:
    """Time XLA's version of the exported program, in a loop."""
    start = perf_counter()
    made = Compiled(case.program, case.made[1])
    error = error_of(case.torch.from_numpy(np.array(made.result)), case.wanted)
    return {"error": error, "seconds": perf_counter() - start, **_timed_row(made.time_loop())}


@frozen
class System:
    """Contender with its measurements for inference and training.

    It has a function for inference, the seconds of it besides searching, the seconds of searching (none where these are
    the case's), and a function for a training step (none without training).
    """

    infer: Callable[[ModelCase], Row]
    least: float = 25.0
    search: float | None = 0.0
    training: float | None = None

    def seconds(self, task: Task, budget: float) -> float:
        """Return the seconds that a row takes about."""
        least = self.least if task == "inference" or self.training is None else self.training
        return least + (budget if self.search is None else self.search)

    def takes(self, task: Task) -> bool:
        """Return whether it takes part in a task."""
        return self.training is not None or task == "inference"


def _search_system(seconds: float) -> System:
    return System(lambda case: afresh(case, seconds), least=15.0, search=seconds)


def _compile_system(**options: Any) -> Callable[[ModelCase], Row]:
    return lambda case: time_compiled(case, case.workload.model.images, **options)


#: Budgets at which the plans of a search are compared.
CURVE = (10, 30, 60, 120, 300)
#: Modes in which the cost model's plan is timed, besides Algorithm 1.
UNTUNED_MODES: tuple[Mode, ...] = ("fusion", "no-fusion")
#: Order of measurement, by importance.
SYSTEMS: Mapping[str, System] = {
    "cuts mixed": System(lambda case: ours(case, "mixed"), least=15.0, search=None, training=40.0),
    "PyTorch": System(time_eager, least=8.0, training=20.0),
    "torch.compile": System(_compile_system(), training=110.0),
    "cuts untuned": System(time_untuned),
    **{f"cuts untuned {mode}": System(partial(time_untuned, mode=mode)) for mode in UNTUNED_MODES},
    "cuts fusion": System(lambda case: ours(case, "fusion"), search=None),
    "cuts no-fusion": System(lambda case: ours(case, "no-fusion"), search=None),
    "max-autotune": System(_compile_system(mode="max-autotune"), least=120.0),
    "XLA": System(by_xla, least=30.0, training=90.0),
    **{f"cuts {seconds} s": _search_system(seconds) for seconds in CURVE},
}
OURS = tuple(name for name in SYSTEMS if name.startswith("cuts"))
#: Points of the curve, which have a table of their own.
CURVE_SYSTEMS = tuple(f"cuts {seconds} s" for seconds in CURVE)
PEERS = tuple(name for name in SYSTEMS if name not in OURS)
#: Systems that begin with the exported program.
EXPORT_SYSTEMS = (*OURS, "XLA")
#: Systems that leave a process unfit for others: torchax becomes a backend there that PyTorch's compiler does not know.
LEAVING = ("XLA",)
#: Systems of a call without a choice.
USUAL = ("cuts mixed", "PyTorch", "torch.compile")


def run(case: ModelCase, system: str) -> Row:
    """Measure a system on a workload."""
    if case.workload.task == "training":
        precision = case.workload.precision
        if system == OURS[0]:
            return train_as_one_graph(case.torch, case.made, case.budget, precision)
        if system == "XLA":
            return train_by_xla(case.torch, case.made)
        return train(case.torch, case.made, system, precision)
    return SYSTEMS[system].infer(case)


# ---- breakdown

#: Places of the largest window of a depthwise convolution in these networks.
WINDOW = 25
#: Parts of kernel names of cuBLAS, cuDNN and PyTorch that convolve, multiply matrices or attend.
COMPLEX = ("gemm", "gemv", "conv", "winograd", "xmma", "cutlass", "fmha", "attention", "dgrad", "fprop", "dot_kernel",
           "rnn", "lstm", "gru", "splitk")  # fmt: skip
DEPTHWISE = ("depthwise", "dgrad2d_grouped")


def of_plan(plan: CompiledPlan) -> dict[str, float]:
    """Return microseconds by kind of kernel of an executed plan."""
    found: dict[str, float] = {}
    times = plan.session.time_steps(repeats=20)
    for group, timing in zip(plan.plan.groups, times, strict=True):
        kind = "complex" if _is_complex(str(group.get("form", ""))) else "simple"
        nodes = group.get("nodes")
        kind += " (fusion)" if isinstance(nodes, (list, tuple)) and len(nodes) > 1 else ""
        turns = group.get("turns", 1)
        found[kind] = found.get(kind, 0.0) + timing.median * 1e6 * (turns if isinstance(turns, int) else 1)
    return found


def _is_complex(text: str) -> bool:
    """Return whether a group, or one of several, sums more products than a window has places."""
    groups = [parse_ir(part + "\n}", "<group>") for part in text.split("\n}\n") if part.strip()]
    return any(_multiplies(group) for group in groups if isinstance(group, FusedGroup))


def _multiplies(group: FusedGroup) -> bool:
    for segment in group.segments:
        names = [r.name for r in segment.reductions]
        if any(is_contraction(r, names) and prod(v.extent for v in r.reduce) > WINDOW for r in segment.reductions):
            return True
    return False


def of_profile(torch: Any, call: Callable[[], object]) -> dict[str, float]:
    """Return microseconds by kind of kernel of a PyTorch call."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.events():
        name = event.name.lower()
        taken = float(event.device_time)
        if taken > 0.0:
            matrix = any(part in name for part in COMPLEX) and not any(part in name for part in DEPTHWISE)
            kind = "complex" if matrix else "simple"
            found[kind] = found.get(kind, 0.0) + taken
    return found
