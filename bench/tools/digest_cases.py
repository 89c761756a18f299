"""Cases of the kernel digests.

They are named texts of a compiler version's output for fixed inputs.

A case is a tuple of strings, so that processes can share cases out; `case_text` turns it into text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeAlias

from cuts.backends import find_target
from cuts.bench.networks.models import BY_NAME, ModelWorkload
from cuts.bench.networks.systems import ModelCase
from cuts.bench.tools.recorded_domain import domain_of, read_work
from cuts.bench.tools.records import RESULTS
from cuts.compile import Spec, compile_model, load_model, load_spec
from cuts.compile.selection.cached_decisions import decision_key
from cuts.ir import CompiledGraph, CompileOptions, CutsError, Graph, Target
from cuts.ir.machine import precisions_of
from cuts.ops import Registry
from cuts.passes import ForeignDecisionsError, compile_graph
from cuts.runtime import make_plan
from cuts.search import RunMode, tuning_session
from cuts.search.database.exchange import _read as read_results
from cuts.search.database.packs import shipped_packs
from cuts.search.learned.recorded_spaces import read_spaces
from cuts.search.tasks.kernels import make_kernel
from cuts.search.tasks.tuning_task import TuningTask, read_schedule
from cuts.tests import operations, operations_added
from cuts.tests.fuzz.drawing import draw_graphs
from cuts.tests.models import REAL
from cuts.tests.operations_graph import bench_of

Case: TypeAlias = tuple[str, ...]
TARGETS = ("opencl", "cuda:sm_75", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89", "cuda:sm_90")
MODES = ("no-fusion", "fusion", "mixed")
PRECISIONS = ("fp32", "tf32", "fp16")
FUZZ_SEED, FUZZ_GRAPHS, FUZZ_BATCH = 11, 2000, 25
WINNERS_BATCH = 50
#: Graphs of all operations; those of `tests/operations_added.py` have their own, so that earlier digests hold.
_OPERATIONS = ("forward", "gradients", "added forward", "added gradients")
#: Names of kernels without their operations are digests of IR text; they say nothing of the kernel.
_KERNEL_NAME = re.compile(r"cuts_[0-9a-f]{16}")


def all_cases(quick: bool = False) -> Iterator[Case]:
    """Yield every case, the longest first.

    With `quick` it is a subset for each kind, of some seconds.
    """
    ways = [*_settings()]
    if quick:
        yield from (("model", "voice", *way) for way in ways[::3])
        yield from (("fuzz", str(first), "1") for first in range(0, FUZZ_GRAPHS, FUZZ_GRAPHS // 8))
        yield ("winners", "0", "12")
        yield ("space", _space_files()[-1])
        return
    yield from (("pack", name, str(batch)) for name, model in BY_NAME.items() for batch in model.batches)
    yield from (("operations", kind, *way) for kind in _OPERATIONS for way in ways)
    yield from (("model", name, *way) for number, name in enumerate(REAL) for way in _diagonal(ways, number))
    yield from (("space", name) for name in _space_files())
    yield from (("fuzz", str(first), str(FUZZ_BATCH)) for first in range(0, FUZZ_GRAPHS, FUZZ_BATCH))
    yield from (("winners", str(first), str(WINNERS_BATCH)) for first in range(0, len(_winners()), WINNERS_BATCH))


def _settings() -> Iterator[tuple[str, str, str]]:
    """Yield targets, modes and precisions so that each pair of two of these occurs: a Latin square."""
    for row, target in enumerate(TARGETS):
        able = precisions_of(find_target(target))
        for column, mode in enumerate(MODES):
            precision = PRECISIONS[(row + column) % len(PRECISIONS)]
            yield target, mode, precision if precision in able else PRECISIONS[0]


def _diagonal(ways: Sequence[Case], number: int) -> Iterator[Case]:
    """Yield one way for each target; three numbers after one another take all ways."""
    yield from (ways[row * len(MODES) + (number + row) % len(MODES)] for row in range(len(TARGETS)))


def case_text(case: Case) -> str:
    """Return a case's kernels and launches, or model-ordered costs, as text.

    An error of the compiler is the text of its case, as it has to stay the same, too.
    """
    kind, *arguments = case
    try:
        return str(_KINDS[kind](*arguments))
    except CutsError as error:
        return f"{type(error).__name__}: {error.message}"


def compiled_text(compiled: CompiledGraph, target: Target) -> str:
    """Return kernels, ordered launches, and the arena's bytes as text.

    Kernels have source, grid, block, arguments.
    """
    lines = [
        f"{kernel.with_label().source}\n{kernel.grid} {kernel.block} {kernel.shared_bytes} {kernel.dynamic_shared}\n"
        + "\n".join(f"{a.tensor} {a.dtype} {a.written} False" for a in kernel.arguments)
        + "".join(f"\n{a.map}" for a in kernel.arguments if a.map)
        for kernel in compiled.kernels
    ]
    lines += [f"launch {step.kernel} {' '.join(step.tensors)}" for step in compiled.steps]
    lines += [f"loop {loop.first} {loop.last} {loop.count}" for loop in compiled.loops]
    lines.append(f"arena {make_plan(compiled, target).arena}")
    return _KERNEL_NAME.sub("cuts_#", "\n".join(lines))


def _compile(graph: Graph, spec: Spec, target: str, mode: Any, precision: Any) -> str:
    machine, options = find_target(target), CompileOptions(mode, precision=precision)
    # no planning workers: each would import its modules for up to a second, and cases fill all processors
    return compiled_text(compile_model(graph, spec, machine, options, compile_graph), machine)


@cache
def _model(name: str) -> tuple[Graph, Spec]:
    spec = load_spec([])
    return load_model(str(REAL[name].fetch()), spec, REAL[name].shapes), spec


@cache
def _operations(kind: str) -> tuple[Graph, Spec]:
    added = [*operations_added.DIFFERENTIABLE, *operations_added.FLAT]
    uses = [*operations.DIFFERENTIABLE, *operations.SCALAR, *operations.FLAT]
    part, _, pass_ = kind.rpartition(" ")
    bench = bench_of([use for use in uses if (use in added) == bool(part)], pass_ == "gradients")
    return bench.graph, bench.spec


def _fuzz_text(first: str, count: str) -> str:
    spec, texts = Spec(Registry.builtin()), []
    for number, graph in draw_graphs(FUZZ_SEED, int(first), int(count)):
        target = TARGETS[number % len(TARGETS)]
        able = [p for p in PRECISIONS if p in precisions_of(find_target(target))]
        mode, precision = MODES[number // 6 % 3], able[number // 18 % len(able)]
        try:
            texts.append(_compile(graph, spec, target, mode, precision))
        except CutsError as error:
            texts.append(f"{type(error).__name__}: {error.message}")
    return "\n".join(texts)


@cache
def _winners() -> tuple[Any, ...]:
    return tuple(result for name, data in shipped_packs() for result in read_results(data, name).results)


def _winners_text(first: str, count: str) -> str:
    texts = []
    for result in _winners()[int(first) : int(first) + int(count)]:
        form, storages = read_work(json.loads(result.description)["work"])
        problem = TuningTask(form, storages, find_target("cuda:h200"), {})
        kernel = make_kernel(problem, read_schedule(result.winner.schedule))
        texts.append(_KERNEL_NAME.sub("cuts_#", f"{kernel.with_label().source}\n{kernel.grid} {kernel.block}"))
    return "\n".join(texts)


def _space_files() -> list[str]:
    return sorted(str(path.relative_to(RESULTS)) for path in RESULTS.glob("*spaces*/*.json.gz"))


def _space_text(name: str) -> str:
    lines = []
    for space in read_spaces(RESULTS / name):
        lines += [f"{p.score.hex()} {p.structure} {p.places}" for p in domain_of(space).points]
    return "\n".join(lines)


def _pack_text(name: str, batch: str) -> str:
    import torch

    spec, target = load_spec([]), find_target("cuda:h200")
    model = BY_NAME[name]
    workload = ModelWorkload(model, "inference", int(batch))
    graph = load_model(ModelCase(workload, model.make(int(batch), False), torch, 0.0).program, spec, None, ())
    with tuning_session(target, frozen=True, guesses=True) as session:
        answer = session.database.answer(decision_key(graph, spec, target, CompileOptions()).key)
        if answer is None:
            return "no decisions"
        with suppress(ForeignDecisionsError):
            replay = session.begin(RunMode(answer.read()))
            return compiled_text(compile_model(graph, spec, target, CompileOptions(), replay.compile), target)
    return "foreign decisions"


_KINDS: dict[str, Any] = {
    "model": lambda name, *way: _compile(*_model(name), *way),
    "operations": lambda kind, *way: _compile(*_operations(kind), *way),
    "fuzz": _fuzz_text,
    "winners": _winners_text,
    "space": _space_text,
    "pack": _pack_text,
}
