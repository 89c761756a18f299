"""Aligned copies of a contraction's factors."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.ir import CompileOptions, FusedGroup
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes import Decisions, record_decisions, stage_results
from cuts.passes.context import CompileContext
from cuts.passes.costs import CandidateSubgraph
from cuts.passes.costs.candidate_subgraphs import CostedKernels, partition_subgraph
from cuts.passes.fusion import canonical_names, form_key
from cuts.passes.fusion.interpret import interpret
from cuts.passes.model import features_of
from cuts.passes.results import Launches
from cuts.passes.schedule import check_schedule, choose
from cuts.passes.split import Division, Splitting
from cuts.passes.split.align_operands import align_operands, may_be_aligned
from cuts.tests.kernels.test_bulk_copies import MAJORS, SMALL_GPU, with_tma
from cuts.tests.kernels.test_matrix_instructions import _device, check, convolution, product
from cuts.tests.kernels.test_warpgroup_products import halves, point
from cuts.tests.needs import needs_opencl

GPU = find_target("cuda:sm_90")
#: Contractions, and how many of their factors are copied.
CASES = {
    "odd pitches": (product(DType.F16, "", (1, 41, 51, 61), (False, False)), 2),
    "odd pitches, turned": (product(DType.BF16, "", (2, 41, 37, 43), (True, True)), 2),
    "one odd pitch": (product(DType.F16, "", (1, 41, 51, 64), (False, False)), 1),
    "channels outside": (convolution(DType.F16, "", (2, 16, 7, 40), 1), 2),
    "channels innermost, odd": (convolution(DType.BF16, "", (2, 16, 7, 33), 2, last=True), 2),
    "aligned": (product(DType.F16, "", (1, 40, 56, 64), (False, False)), 0),
    "another math mode": (product(DType.F32, "tf32", (1, 41, 51, 61), (False, False)), 0),
    "by lanes, along the sums": (product(DType.F32, "", (1, 41, 51, 61), (False, True)), 2),
    "by lanes, along columns": (product(DType.F32, "", (1, 41, 51, 61), (True, False)), 0),
    "few products": (product(DType.F16, "", (1, 9, 11, 61), (False, False)), 0),
}


@pytest.fixture(autouse=True)
def _few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MIN_PRODUCTS", "MIN_LANE_PRODUCTS"):
        monkeypatch.setattr(f"cuts.passes.split.align_operands.{name}", 1 << 14)
    monkeypatch.setattr("cuts.passes.split.align_operands.MIN_USES", 1)


@pytest.mark.parametrize("name", CASES)
def test_copies_and_their_contraction_are_the_contraction(name: str) -> None:
    group, copied = CASES[name]
    forms = align_operands(group)
    assert len(forms) == (copied + 1 if copied else 0)
    if not forms:
        return
    generator = np.random.default_rng(1)
    known = {t: generator.integers(-4, 5, group.tensors[t].shape).astype(np.float64) for t in group.inputs}
    expected = interpret(group, known)["y"]
    for form in forms:
        copies = [form.tensors[t] for t in form.outputs if t != "y"]
        assert all(copy.shape[-1] * copy.dtype.size % 16 == 0 for copy in copies)
        known |= interpret(form, {t: known[t] for t in form.inputs})
    assert (known["y"] == expected).all()


@needs_opencl
@pytest.mark.parametrize("deep", MAJORS)
def test_padded_rows_are_boxes_opencl(deep: tuple[bool, bool]) -> None:
    whole = halves((1, 70, 101, 83), deep, DType.F16)
    *copies, form = align_operands(whole)
    schedule = with_tma(point(whole, deep), 2)
    assert len(copies) == 2
    assert not check_schedule(form, schedule, SMALL_GPU)
    check(_device("opencl"), SMALL_GPU, form, schedule)


def test_copies_are_for_warpgroups() -> None:
    group, _ = CASES["odd pitches"]
    assert may_be_aligned(group, GPU)
    assert not may_be_aligned(group, find_target("cuda:sm_80"))
    assert align_operands(CASES["another math mode"][0]) == ()


class _Costs:
    """Costs of kernels: a second of each copy and of their contraction, nine of parts of a split one."""

    def __init__(self, group: FusedGroup, whole: float) -> None:
        copies = [(canonical_names(form)[0], 1.0) for form in align_operands(group)]
        self.known = {form_key(form): seconds for form, seconds in (*copies, (group, whole))}

    def cost(self, form: FusedGroup) -> float:
        """Return the seconds of a kernel."""
        return self.known.get(form_key(form), 9.0)


@pytest.mark.parametrize(("whole", "aligned"), [(3.5, False), (4.0, True)])
def test_copies_are_made_where_they_clearly_pay(whole: float, aligned: bool) -> None:
    group = canonical_names(CASES["odd pitches"][0])[0]
    costs = _Costs(group, whole)
    splitting = Splitting(costs, costs, GPU, worth=0.8)
    assert splitting.division(group) == Division(aligned=aligned)
    assert len(splitting.kernels(group)) == (3 if aligned else 1)


@pytest.fixture(scope="module")
def planned_convolution() -> CostedKernels:
    """Kernels of a convolution of halves whose images have 196 pixels."""
    types = {"x": TensorType(DType.F16, (16, 128, 14, 14)), "w": TensorType(DType.F16, (128, 128, 3, 3))}
    node = Node("n", "conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)})
    (types["y"],) = Registry.builtin().instances.infer(node, list(types.values()))
    graph = Graph("g", ("x", "w"), ("y",), types, (node,))
    found = partition_subgraph(CandidateSubgraph(graph, Registry.builtin(), GPU, "mixed"))
    assert found is not None
    return found


def test_alternatives_of_an_algorithm_are_compared_with_copies(planned_convolution: CostedKernels) -> None:
    ((whole, _),) = planned_convolution.costs
    times = [choose(form, GPU)[0].score for form in (*align_operands(whole), whole)]
    assert len(times) == 4
    assert planned_convolution.searched == pytest.approx(sum(times[:3]))
    assert planned_convolution.searched < times[3]


def test_results_leave_singly_where_rows_begin_anywhere(planned_convolution: CostedKernels) -> None:
    ((whole, _),) = planned_convolution.costs
    counted: dict[int, set[float]] = {}
    for candidate in choose(product := align_operands(whole)[-1], GPU, count=400):
        (segment,) = candidate.schedule.segments
        if segment.reductions[0].mma.startswith("m64"):
            (vector,) = (d.vector for d in segment.dims if len(d.axes) > 1)
            stores = float(features_of(product, candidate.schedule, GPU).stores)
            counted.setdefault(vector, set()).add(prod(d.block for d in segment.dims) / stores)
    assert counted[4] == {4.0}
    assert counted[8] == {1.0}


def _launches(record: Decisions | None = None) -> tuple[Launches, CompileContext]:
    """Plan a product of odd matrices, whose copies pay by the cost model, up to its launches."""
    shapes = {"a": (2049, 2051), "c": (2051, 2047), "y": (2049, 2047)}
    types = {name: TensorType(DType.F16, shape) for name, shape in shapes.items()}
    graph = Graph("odd", ("a", "c"), ("y",), types, (Node("n", "matmul", ("a", "c"), ("y",)),))
    context = CompileContext(Registry.builtin(), GPU, CompileOptions(), emit, record=record)
    return next(result for name, result in stage_results(graph, context) if name == "launches"), context


def test_copies_are_recorded_and_replayed() -> None:
    launches, context = _launches()
    decisions = record_decisions(launches, context)
    assert [group.copies for group in decisions.groups] == [2]
    again, _ = _launches(decisions)
    forms = [[group.form for group in found.scheduled.partition.groups] for found in (launches, again)]
    assert len(forms[0]) == 3
    assert forms[0] == forms[1]
    tensors = [group.tensors for group in launches.scheduled.partition.groups]
    workspaces = [set(copy.values()) & set(tensors[-1].values()) for copy in tensors[:2]]
    assert [len(found) for found in workspaces] == [1, 1]
    assert workspaces[0] != workspaces[1]
