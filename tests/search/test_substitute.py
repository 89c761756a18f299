"""Libraries against generated kernels: the faster one runs, a wrong one never does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.backends.library.routine import Request
from cuts.ir.compiled import CompiledGraph, Step
from cuts.ir.graph import Graph
from cuts.ir.launch import Argument, KernelFunction
from cuts.ir.target import Target
from cuts.ir.types import DType
from cuts.passes.schedule.choose import choose
from cuts.search.measure import Verdict
from cuts.search.selector import MeasuredSelector
from cuts.search.settings import Settings, TunedChoice
from cuts.search.substitute import constant_arguments, faster_routines, substitute, with_libraries

from .fakes import OPENCL, FakeBench, problem_of, tuner_of


def routine(name: str) -> KernelFunction:
    arguments = (Argument("x0", DType.F32, False), Argument("x1", DType.F32, False), Argument("y", DType.F32, True))
    return KernelFunction(name, "library", "{}", (1, 1, 1), (1, 1, 1), arguments, info={"library": f"{name} 1.0"})


def offers(request: Request) -> Sequence[KernelFunction]:
    return [routine("slow"), routine("fast"), routine("wrong")]


TIMES = {"slow": 3e-3, "fast": 2e-3, "wrong": 1e-3}


def bench() -> FakeBench:
    return FakeBench(
        lambda kernel: TIMES[kernel.name], lambda kernel: Verdict("wrong" if kernel.name == "wrong" else "ok")
    )


def chosen(seconds: float | None) -> TunedChoice:
    (candidate,) = choose(problem_of().form, OPENCL)
    return TunedChoice(candidate, seconds)


@pytest.mark.parametrize(("ours", "taken"), [(4e-3, True), (None, True), (2.01e-3, False), (1.5e-3, False)])
def test_a_routine_wins_where_it_is_faster_and_right(ours: float | None, taken: bool) -> None:
    found = faster_routines(bench(), [problem_of()], [chosen(ours)], [()], offers)
    assert {n: r.kernel.name for n, r in found.items()} == ({0: "fast"} if taken else {})


def test_steps_bind_the_same_tensors_in_the_order_of_the_routine() -> None:
    order = (Argument("y", DType.F32, True), Argument("offsets", DType.I32, False, table=True),
             Argument("x1", DType.F32, False),
             Argument("x0", DType.F32, False))  # fmt: skip
    kernels = tuple(KernelFunction(name, "cuda", "", (1, 1, 1), (1, 1, 1), order) for name in ("k0", "k1"))
    tensors = ("result", "offsets", "weights", "image")
    graph = Graph("g", (), (), {}, ())
    records = ({"measured": 4e-3, "why": "old", "parameters": {"a": 1}}, {"why": "kept"})
    compiled = CompiledGraph(graph, kernels, (Step(0, tensors), Step(1, tensors)), {}, records)
    found = faster_routines(bench(), [problem_of()], [chosen(4e-3)], [()], offers)
    changed = substitute(compiled, found)
    assert [k.name for k in changed.kernels] == ["fast", "k1"]
    assert changed.steps == (Step(0, ("image", "weights", "result")), Step(1, tensors))
    assert changed.groups[0]["library"] == "fast 1.0"
    assert changed.groups[0]["why"] == "fast 1.0 took 2000.00 us, the fastest generated kernel took 4000.00 us"
    assert changed.groups[1] == records[1]
    assert substitute(compiled, {}) is compiled


def test_libraries_compete_only_where_asked_for_on_a_device_of_theirs() -> None:
    kernel = KernelFunction("k", "cuda", "", (1, 1, 1), (1, 1, 1), routine("r").arguments)
    compiled = CompiledGraph(Graph("g", (), (), {}, ()), (kernel,), (Step(0, ("a", "b", "c")),), {}, ({},))

    def selector(target: Target, libraries: bool) -> MeasuredSelector:
        made = MeasuredSelector(target, tuner_of(bench()), Settings(libraries=libraries))
        made.problems, made.choices = [problem_of()], [chosen(4e-3)]
        return made

    cuda = find_target("cuda:h200")
    assert with_libraries(compiled, selector(cuda, True), offers).kernels[0].name == "fast"
    assert with_libraries(compiled, selector(cuda, False), offers) is compiled
    assert with_libraries(compiled, selector(OPENCL, True), offers) is compiled


def test_arguments_that_are_always_constants_are_known() -> None:
    graph = Graph("g", (), (), {}, (), {"w0": np.zeros(1), "w1": np.zeros(1)})
    kernel = KernelFunction("k", "cuda", "", (1, 1, 1), (1, 1, 1), routine("r").arguments)
    steps = (Step(0, ("a", "w0", "c")), Step(0, ("w0", "w1", "c")))
    assert constant_arguments(CompiledGraph(graph, (kernel,), steps), 0) == {"x1"}
