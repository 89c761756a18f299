"""Execution of samples: many in one graph, each on many data sets.

Kernels are compared with the reference, the reference with NumPy.

A case is one sample on one data set. A difference is cut down to the numbers that show it, by running the same kernels
again on simpler ones.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import define, field, frozen
from cuts.backends.devices import find_target
from cuts.compile.driver import build_graph, compile_model
from cuts.compile.loading import Spec
from cuts.compile.plan import CompiledPlan
from cuts.ir.compiled import CompiledGraph, CompileOptions, Mode
from cuts.ir.errors import CutsError, CutsWarning
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Instance, Registry

from ...kernels.extremes import is_real
from .judging import Judge, near
from .oracles import second_opinion
from .samples import Sample, Slot, draw, slots
from .values import Array, adds_up, operands

#: Samples of a batch: they are compiled together.
BATCH = 32
#: How often simpler numbers are tried on a difference.
SIMPLER = 60
#: Digits that the reference and NumPy share in sums of doubles, in any order.
_DOUBLE = 1e-9
_MODES: tuple[Mode, ...] = ("no-fusion", "mixed")


@frozen
class Difference:
    """Sample with a wrong result: comparison, numbers, and elements."""

    sample: Sample
    against: str
    data: int
    text: str
    operands: Mapping[str, Any] = field(factory=dict)

    @property
    def record(self) -> dict[str, Any]:
        """The difference as JSON values."""
        return {**self.sample.record, "against": self.against, "data": self.data, "text": self.text,
                "operands": dict(self.operands)}  # fmt: skip


@define
class Report:
    """Outcome of a batch."""

    samples: int = 0
    cases: int = 0
    elements: int = 0
    kernels: int = 0
    opinions: int = 0
    types: dict[str, int] = field(factory=dict)
    operations: dict[str, int] = field(factory=dict)
    differences: list[Difference] = field(factory=list)


@frozen
class Bound:
    """A sample in a graph, with its meaning, names and first data.

    Names are those of its operands and results in the graph.
    """

    sample: Sample
    instance: Instance
    mark: str

    @property
    def types(self) -> dict[str, TensorType]:
        """The types of the operands given, by their formal names."""
        pairs = zip(self.instance.inputs, self.sample.types, strict=False)
        return {name: type_ for name, type_ in pairs if name is not None and type_ is not None}

    @property
    def seed(self) -> int:
        """A number of its own."""
        return zlib.crc32(self.sample.text.encode())

    @property
    def node(self) -> Node:
        """Its node."""
        given = tuple(None if n is None else self.mark + n for n in self.instance.inputs)
        results = tuple(self.mark + n for n in self.instance.outputs)
        return Node(self.mark, self.sample.op, given, results, dict(self.sample.attributes))


def samples_of(registry: Registry, seed: int, batch: int) -> list[Sample]:
    """Return the samples of a batch.

    Batches go through all slots in a random order, then through all of them again.
    """
    every = slots(registry)
    rounds, first = divmod(batch, batches_of_round(registry))
    order = np.random.default_rng([seed, rounds]).permutation(len(every))[first * BATCH : (first + 1) * BATCH]
    drawn = (draw(registry, every[n], seed, rounds) for n in order)
    return [sample for sample in drawn if sample is not None]


def related_samples(registry: Registry, seed: int, words: Collection[str]) -> list[Sample]:
    """Return a batch of samples related to some words, filled up randomly.

    Words name operations, types and enabled attributes.
    """
    every = [draw(registry, slot, seed, rounds) for rounds in range(4) for slot in slots(registry)]
    near = [slot for slot in slots(registry) if slot.op in words and str(slot.dtype) in words]
    every += [draw(registry, slot, seed, rounds) for rounds in range(4, 30) for slot in near]
    drawn = [sample for sample in every if sample is not None]
    rank = np.random.default_rng(seed).random(len(drawn))

    def score(number: int) -> float:
        sample = drawn[number]
        named = {str(t.dtype) for t in sample.types if t is not None} | set(sample.op.split("_")) | {sample.op}
        named |= {name for name, value in sample.attributes.items() if value is True}
        return float(rank[number] - len(named & set(words)))

    return [drawn[n] for n in sorted(range(len(drawn)), key=score)[:BATCH]]


def batches_of_round(registry: Registry) -> int:
    """Return the number of batches that draw every operation and type."""
    return -(-len(slots(registry)) // BATCH)


def missing(registry: Registry, seed: int) -> list[Slot]:
    """Return operations and element types for which no sample is found."""
    return [slot for slot in slots(registry) if draw(registry, slot, seed, 0) is None]


def bind_samples(registry: Registry, samples: Sequence[Sample]) -> list[Bound]:
    """Return samples with names of their own."""
    return [Bound(s, s.instance(registry), f"{n} {s.op}.") for n, s in enumerate(samples)]


def compile_samples(registry: Registry, uses: Sequence[Bound], target: str, mode: Mode) -> CompiledPlan:
    """Compile samples together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutsWarning)  # results without elements are meant
        return build_graph(_graph(uses), Spec(registry), find_target(target), CompileOptions(mode=mode))


def made_for(registry: Registry, samples: Sequence[Sample], target: str, turn: int = 0) -> CompiledGraph:
    """Return the kernels of samples together, for a possibly absent machine."""
    graph, options = (
        _graph(bind_samples(registry, samples)),
        CompileOptions(mode=_MODES[turn % len(_MODES)], verify=True),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CutsWarning)
        return compile_model(graph, Spec(registry), find_target(target), options)


def _graph(uses: Sequence[Bound]) -> Graph:
    """Return samples as one graph."""
    types = {use.mark + name: type_ for use in uses for name, type_ in use.types.items()}
    inputs = tuple(types)
    for use in uses:
        types |= dict(zip(use.node.outputs, use.instance.output_types, strict=True))
    nodes = tuple(use.node for use in uses)
    return Graph("sweep", inputs, tuple(v for node in nodes for v in node.outputs), types, nodes)


# ---- the reference against NumPy


def judge_reference(registry: Registry, samples: Sequence[Sample], sets: range) -> Report:
    """Compare the reference with NumPy's version, if there is one."""
    report = Report(len(samples))
    for use in bind_samples(registry, samples):
        for data in sets:
            given = operands(use.instance.program, use.types, use.seed, data)
            judge = Judge(use.instance.program, given)
            report.cases += 1
            opinion = _opinion(use, given)
            if opinion is not None:
                report.opinions += 1
                if found := _against_opinion(use, judge, opinion):
                    report.differences.append(Difference(use.sample, "numpy", data, found, _printable(given)))
                    break
    return report


def _opinion(use: Bound, given: Mapping[str, Array]) -> list[Array] | None:
    ordered = [None if name is None else given[name] for name in use.instance.inputs]
    return second_opinion(use.sample.op, use.instance.attributes, ordered)


def _against_opinion(use: Bound, judge: Judge, opinion: Sequence[Array]) -> str:
    """Return the differences of the reference from NumPy; empty where they agree."""
    program = use.instance.program
    for name, wanted in zip(use.instance.outputs, opinion, strict=True):
        found, dtype = judge.expected[name], program.tensors[name].dtype
        wanted = wanted.reshape(found.shape) if wanted.size == found.size else wanted
        if wanted.shape != found.shape:
            return f"{name}: shape {found.shape}, expected {wanted.shape}"
        good = near(found, wanted, DType.F64 if dtype.is_float else dtype, 1 << 12)
        if dtype.is_float and adds_up(program) and wanted.size:
            with np.errstate(all="ignore"):
                largest = np.max(np.where(np.isfinite(wanted), np.abs(wanted), 0.0))
                good |= np.abs(found - wanted) <= _DOUBLE * (1 + largest)
        if not good.all():
            return f"{name}{_first(~good, found, wanted)}"
    return ""


def _first(bad: Array, found: Array, wanted: Array) -> str:
    at = tuple(int(n) for n in np.argwhere(bad)[0])
    return f"{list(at)}: found {found[at]!r}, expected {wanted[at]!r} ({int(bad.sum())} of {bad.size} elements)"


def _printable(given: Mapping[str, Array]) -> dict[str, Any]:
    """Return operands as JSON values, where they are few."""
    plain = {name: array.astype(np.float64) if is_real(array) else array for name, array in given.items()}
    return {name: array.tolist() if array.size <= 64 else f"{array.size} elements" for name, array in plain.items()}


# ---- a target against the reference


def judge_target(registry: Registry, samples: Sequence[Sample], sets: range, target: str, turn: int = 0) -> Report:
    """Compare kernels with the reference.

    Where samples do not compile together, each is tried alone.
    """
    uses = bind_samples(registry, samples)
    mode = _MODES[turn % len(_MODES)]
    try:
        plan = compile_samples(registry, uses, target, mode)
    except CutsError as error:
        if len(samples) > 1:
            return _join_reports([judge_target(registry, [s], sets, target, turn) for s in samples])
        return Report(len(samples), differences=[Difference(samples[0], target, -1, f"refused: {error}"[:500])])
    report = Report(len(samples), kernels=len(plan.kernels))
    for use in uses:
        report.operations[use.sample.op] = report.operations.get(use.sample.op, 0) + len(sets)
        for type_ in use.types.values():
            report.types[str(type_.dtype)] = report.types.get(str(type_.dtype), 0) + len(sets)
    _run(report, plan, uses, sets, target)
    return report


def _run(report: Report, plan: CompiledPlan, uses: Sequence[Bound], sets: range, target: str) -> None:
    """Run a plan on every data set; of each sample the first difference counts."""
    shown: set[str] = set()
    for data in sets:
        given = {use.mark: operands(use.instance.program, use.types, use.seed, data) for use in uses}
        found = plan.run({mark + n: a for mark, arrays in given.items() for n, a in arrays.items()})
        for use in uses:
            judge = Judge(use.instance.program, given[use.mark])
            report.cases += 1
            report.elements += sum(type_.size for type_ in use.instance.output_types)
            if use.mark not in shown and (text := _fault(use, judge, found)):
                shown.add(use.mark)
                least, text = _simplest(plan, use, given, text)
                report.differences.append(Difference(use.sample, target, data, text, _printable(least)))


def _fault(use: Bound, judge: Judge, found: Mapping[str, Any]) -> str:
    """Return the first element of a sample that is wrong; nothing where none is."""
    for name in use.instance.outputs:
        array = np.asarray(found[use.mark + name])
        bad = judge.wrong(name, array)
        if bad.any():
            return f"{name}{_first(bad, array, judge.expected[name])}"
    return ""


def _simplest(
    plan: CompiledPlan, use: Bound, given: Mapping[str, Mapping[str, Array]], text: str
) -> tuple[Mapping[str, Array], str]:
    """Return operands with as many ones as still show a difference, and that difference."""
    whole = {mark + n: a for mark, arrays in given.items() for n, a in arrays.items()}

    def shows(arrays: Mapping[str, Array]) -> str:
        found = plan.run({**whole, **{use.mark + n: a for n, a in arrays.items()}})
        return _fault(use, Judge(use.instance.program, arrays), found)

    return simplify_arrays(given[use.mark], shows, text)


def simplify_arrays(
    arrays: Mapping[str, Array], shows: Callable[[Mapping[str, Array]], str], text: str, most: int = SIMPLER
) -> tuple[Mapping[str, Array], str]:
    """Replace parts of arrays by ones while `shows` holds.

    Large parts come first.
    """
    arrays, asked = dict(arrays), 0
    parts = [(name, 0, array.size) for name, array in arrays.items() if array.size]
    while parts and asked < most:
        name, first, last = parts.pop(0)
        simpler = arrays[name].copy()
        simpler.reshape(-1)[first:last] = 1
        if (simpler == arrays[name]).all():
            continue
        asked += 1
        if difference := shows({**arrays, name: simpler}):
            arrays[name], text = simpler, difference
        elif last - first > 1:
            middle = (first + last) // 2
            parts += [(name, first, middle), (name, middle, last)]
    return arrays, text


def _join_reports(reports: Sequence[Report]) -> Report:
    """Return several reports as one."""
    whole = Report()
    for report in reports:
        whole.samples += report.samples
        whole.cases += report.cases
        whole.elements += report.elements
        whole.kernels += report.kernels
        whole.opinions += report.opinions
        whole.differences += report.differences
        for counts, more in ((whole.types, report.types), (whole.operations, report.operations)):
            for name, count in more.items():
                counts[name] = counts.get(name, 0) + count
    return whole
