"""Plan validation: plans that may ship are compared by their results.

A plan whose kernels are right, but not together, never ships.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.compile.driver import build_graph, tune_graph, unfused_plan
from cuts.compile.loading import Spec
from cuts.compile.opening import load
from cuts.compile.plan import CompiledPlan, plan_of
from cuts.compile.selection.plan_validation import PlanValidator
from cuts.ir.compiled import CompileOptions
from cuts.ir.errors import BackendError, CutsWarning, NumericsError
from cuts.ir.graph import Graph, Node
from cuts.ir.machine import PrecisionName
from cuts.ir.types import DType, TensorType
from cuts.ir.verify.graph import verify_graph
from cuts.numerics.sampling import MIN_SAMPLED_ELEMENTS, are_informative, sample_elements, sampling_step
from cuts.numerics.validation_inputs import DISTRIBUTIONS, Distribution, draw_inputs, input_scales, perturb_arrays
from cuts.ops import Registry
from cuts.passes.partitioning.form_groups import form_groups
from cuts.runtime.plan import Plan
from cuts.search.database import Database
from cuts.search.session import TuningSession
from cuts.search.summary import summary_lines, summary_values
from cuts.search.tuner.tuner import Tuner

from ..kernels.test_split_k import GPU_LIKE, long_product
from ..needs import opencl_reason
from .fakes import OPENCL, Clock, FakeBench, Inline
from .test_decisions import SHORT_SEARCH
from .test_plan_selection import even

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason() or "it is here")]
SPEC = Spec(Registry.builtin())
SIZE = 24


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep wrong plans in a folder of the test."""
    monkeypatch.setenv("CUTS_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("CUTS_NO_CACHE", raising=False)
    tmp_path.chmod(0o700)


def network(dtype: DType = DType.F32, constants: bool = False) -> Graph:
    """Return two branches of products that meet again.

    Weights are inputs, or constants.
    """
    square = TensorType(dtype, (SIZE, SIZE))
    nodes = (
        Node("left", "matmul", ("x", "w"), ("a",)),
        Node("right", "matmul", ("x", "v"), ("b",)),
        Node("bend", "tanh", ("a",), ("c",)),
        Node("keep", "relu", ("b",), ("d",)),
        Node("meet", "mul", ("c", "d"), ("e",)),
        Node("norm", "softmax", ("e",), ("y",), {"axis": 1}),
    )
    rng = np.random.default_rng(3)
    fixed = {n: (rng.standard_normal((SIZE, SIZE)) / 5).astype(dtype.numpy) for n in "wv"} if constants else {}
    inputs = ("x",) if constants else ("x", "w", "v")
    graph = Graph("net", inputs, ("y", "e"), dict.fromkeys("xwvabcdey", square), nodes, fixed)
    return verify_graph(graph, SPEC.instances.infer)


def compile_plan(graph: Graph, mode: Any = "mixed") -> CompiledPlan:
    return build_graph(graph, SPEC, OPENCL, CompileOptions(mode))


def plain(graph: Graph) -> CompiledPlan:
    return unfused_plan(graph, SPEC, OPENCL, CompileOptions())


def agreement(graph: Graph, made: list[CompiledPlan] | None = None, spare: bool = True) -> PlanValidator:
    """Return the validation of a graph's plans.

    Plain plans that it makes are noted.
    """

    def make() -> CompiledPlan:
        found = plain(graph)
        if made is not None:
            made.append(found)
        return found

    return PlanValidator(graph, SPEC, make, lambda: spare)


def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no graph be small enough for the reference."""
    monkeypatch.setattr("cuts.compile.selection.plan_validation.MAX_REFERENCE_OPERATIONS", 0)
    monkeypatch.setattr("cuts.compile.selection.plan_validation.MAX_ARBITER_OPERATIONS", 0)


def overlapping(plan: Plan) -> Plan:
    """Let two results that are alive at once lie at one place."""
    buffers = {**plan.buffers}
    buffers[plan.storages["b"].buffer] = buffers[plan.storages["a"].buffer]
    return evolve(plan, buffers=buffers)


def share_workspace(plan: Plan) -> Plan:
    """Let two launches use one workspace.

    Both results seem to have one name.
    """
    renamed = {"b": "a"}
    return evolve(plan, steps=tuple(evolve(s, tensors=tuple(renamed.get(t, t) for t in s.tensors)) for s in plan.steps))


def wrong_constant(plan: Plan) -> Plan:
    """Let a kernel compute with another number."""
    kernels = [evolve(k, source=k.source.replace("tanh(", "0.99f * tanh(")) for k in plan.kernels]
    assert [k.source for k in kernels] != [k.source for k in plan.kernels]
    return evolve(plan, kernels=tuple(kernels))


FAULTS = [overlapping, share_workspace, wrong_constant]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("small", [True, False])
def test_wrong_plan_loses_against_right_one_with_notice(
    fault: Callable[[Plan], Plan], small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        large(monkeypatch)
    graph = network()
    judge, right = agreement(graph), compile_plan(graph)
    wrong = CompiledPlan(fault(compile_plan(graph, "no-fusion").plan))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert judge.check_plans([right, wrong]) == [True, False]
        assert judge.check_plans([wrong, right]) == [False, True]
        assert not judge.is_right(wrong)
    assert len(said) == 1
    assert "launches is dropped: it does not compute what" in str(said[0].message)
    folder = str(said[0].message).split("--steps ")[1].split("'")[0]
    assert not all(result.ok for result in load(folder).verify())


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("small", [True, False])
def test_wrong_plan_without_a_rival_is_found(
    fault: Callable[[Plan], Plan], small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not small:
        large(monkeypatch)
    graph = network()
    wrong = CompiledPlan(fault(compile_plan(graph, "no-fusion").plan))
    with pytest.warns(CutsWarning, match="is dropped"):
        assert not agreement(graph).is_right(wrong)


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
@pytest.mark.parametrize("constants", [False, True])
def test_right_plans_agree_whatever_they_round(dtype: DType, constants: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = network(dtype, constants), list[CompiledPlan]()
    large(monkeypatch)
    judge = agreement(graph, made)
    plans = [compile_plan(graph), compile_plan(graph, "no-fusion")]
    assert judge.check_plans(plans) == [True, True]
    assert not made, "no plain plan was needed"
    assert judge.is_right(plans[0])
    assert len(made) == 1


def unary(op: str, dtype: DType, size: int = 4099) -> Graph:
    """Return an operation on a product's result.

    Each is a kernel of its own where nothing is fused.
    """
    types = {"x": TensorType(dtype, (size,)), "a": TensorType(dtype, (size,)), "y": TensorType(dtype, (size,))}
    nodes = (Node("square", "mul", ("x", "x"), ("a",)), Node("then", op, ("a",), ("y",)))
    return verify_graph(Graph(op, ("x",), ("y",), types, nodes), SPEC.instances.infer)


@pytest.mark.parametrize("dtype", [DType.I32, DType.U8, DType.I64])
def test_integers_are_exact(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    graph = unary("abs", dtype)
    assert agreement(graph).check_plans([compile_plan(graph), compile_plan(graph, "no-fusion")]) == [True, True]
    plan = compile_plan(graph).plan
    kernels = tuple(evolve(k, source=k.source.replace("] = ", "] = 1 + ")) for k in plan.kernels)
    wrong = CompiledPlan(evolve(plan, kernels=kernels))
    with pytest.warns(CutsWarning, match="tolerance 0"):
        assert not agreement(graph).is_right(wrong)


@pytest.mark.parametrize("way", [np.nan, np.inf, -np.inf])
def test_nan_in_both_agrees_and_in_one_differs(way: float, monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    found = {"y": np.array([1.0, way, 2.0], np.float32)}
    graph = unary("sqrt", DType.F32, 3)
    plans = [compile_plan(graph), compile_plan(graph, "no-fusion")]
    outputs = iter([found, {"y": found["y"].copy()}])
    monkeypatch.setattr("cuts.compile.selection.plan_validation._run_plan", lambda session, inputs: next(outputs))
    monkeypatch.setattr(PlanValidator, "_judge", lambda self, plan: False)
    assert agreement(graph).check_plans(plans) == [True, True]
    outputs = iter([found, {"y": np.array([1.0, 3.0, 2.0], np.float32)}])
    assert agreement(graph).check_plans(plans) == [False, False]


def test_where_the_function_itself_loses_digits_plans_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The greatest of two nearly equal numbers depends on rounding.

    So does the place where a value is rounded.
    """
    large(monkeypatch)
    types = {n: TensorType(DType.F32, (64, 64)) for n in "xabcy"}
    nodes = (
        Node("n0", "matmul", ("x", "x"), ("a",)),
        Node("n1", "mul", ("a", "big"), ("b",)),
        Node("n2", "sin", ("b",), ("c",)),
        Node("n3", "floor", ("c",), ("y",)),
    )
    types["big"] = TensorType(DType.F32, ())
    graph = Graph("steep", ("x",), ("y",), types, nodes, {"big": np.array(3e5, np.float32)})
    graph = verify_graph(graph, SPEC.instances.infer)
    plan = compile_plan(graph).plan
    kernels = tuple(evolve(k, source=k.source.replace("sin(", "1.000001f * sin(1.0000005f *")) for k in plan.kernels)
    assert agreement(graph).is_right(CompiledPlan(evolve(plan, kernels=kernels)))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_half_overflow_of_stored_values_decides_nothing(
    precision: PrecisionName, monkeypatch: pytest.MonkeyPatch
) -> None:
    large(monkeypatch)
    dtype = DType.F16 if precision == "fp32" else DType.F32
    powers = [Node(f"n{n}", "mul", (f"p{n}", f"p{n}"), (f"p{n + 1}",)) for n in range(5)]
    nodes = (*powers, Node("root", "sqrt", ("p5",), ("y",)))
    types = {name: TensorType(dtype, (300,)) for name in ("y", *(f"p{n}" for n in range(6)))}
    graph = verify_graph(Graph("half", ("p0",), ("y",), types, nodes), SPEC.instances.infer)
    options = CompileOptions(precision=precision)
    plan, other = build_graph(graph, SPEC, OPENCL, options), unfused_plan(graph, SPEC, OPENCL, options)
    judge = PlanValidator(graph, SPEC, lambda: other, lambda: True)
    given = plan.random_inputs()
    assert np.isfinite(plan.run(given)["y"]).sum() > np.isfinite(other.run(given)["y"]).sum()
    assert judge.is_right(plan)
    assert judge.check_plans([plan, other]) == [True, True]


def test_large_plan_ships_unseen_without_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, made = network(), list[CompiledPlan]()
    wrong = CompiledPlan(share_workspace(compile_plan(graph, "no-fusion").plan))
    large(monkeypatch)
    judge = agreement(graph, made, spare=False)
    assert judge.is_right(wrong)
    assert judge.note(wrong) == (
        "the plan of 'net' was not compared with operations one by one: no time was left to make one; "
        "'cuts verify PLAN' compares it with the reference"
    )
    assert not made
    with pytest.warns(CutsWarning, match="is dropped"):
        assert agreement(graph, made, spare=False).check_plans([wrong, compile_plan(graph)]) == [False, True], (
            "suspicion is not"
        )
    assert len(made) == 1


def test_right_plan_ships_where_unfused_one_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of an unmeasured plan are unchecked too.

    The reference decides where it can.
    """
    monkeypatch.setattr("cuts.compile.selection.plan_validation.MAX_REFERENCE_OPERATIONS", 0)
    graph = network()
    wrong = CompiledPlan(wrong_constant(plain(graph).plan))
    judge = PlanValidator(graph, SPEC, lambda: wrong, lambda: True)
    with pytest.warns(CutsWarning, match="of 'net' operations one by one differ from the reference: 'y'"):
        assert judge.is_right(compile_plan(graph))


def test_undecidable_comparison_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    large(monkeypatch)

    def no_room() -> CompiledPlan:
        raise BackendError("no room")

    judge = PlanValidator(graph, SPEC, no_room, lambda: True)
    wrong = CompiledPlan(share_workspace(compile_plan(graph, "no-fusion").plan))
    with pytest.warns(CutsWarning, match="nothing tells which is right: 'y'.*no room"):
        assert judge.check_plans([wrong, compile_plan(graph)]) == [True, True]
    assert judge.is_right(wrong)


def test_search_reports_that_its_plan_was_not_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    large(monkeypatch)
    tuning = TuningSession(OPENCL, Tuner(Clock(Database(None), Inline, FakeBench(even), 4.0)), SHORT_SEARCH)
    with caplog.at_level("INFO", "cuts.compile"):
        tune_graph(network(), SPEC, OPENCL, CompileOptions(), tuning)
    (note,) = tuning.outcome.uncompared
    assert note.startswith("the plan of 'net' was not compared with operations one by one")
    reason, _, unseen = note.rpartition("; ")
    assert f"cuts: {reason}" in caplog.messages, "which the command line prints on standard error"
    assert unseen == "2 of its 3 kernels were never run"
    assert f"not compared: {note}" in list(summary_lines(tuning))
    assert summary_values(tuning)["not compared"] == [note]


@pytest.mark.parametrize("small", [True, False])
def test_missing_memory_costs_the_comparison_only(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*asked: object) -> None:
        raise MemoryError("Unable to allocate 3.00 GiB")

    graph = network()
    plans = [compile_plan(graph), compile_plan(graph, "no-fusion")]
    if not small:
        large(monkeypatch)
    monkeypatch.setattr("cuts.numerics.plan_comparison.compare", none_left)
    judge = agreement(graph)
    monkeypatch.setattr(CompiledPlan, "verify", none_left)
    assert judge.check_plans(plans) == [True, True]
    assert judge.is_right(plans[0])
    assert judge.note(plans[0]).endswith("there is no memory for it: Unable to allocate 3.00 GiB")


def test_memory_shortage_during_the_reference_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    large(monkeypatch)

    def no_room() -> CompiledPlan:
        raise MemoryError

    judge = PlanValidator(graph, SPEC, no_room, lambda: True)
    wrong = CompiledPlan(share_workspace(compile_plan(graph, "no-fusion").plan))
    with pytest.warns(CutsWarning, match="nothing tells which is right: 'y'.*; there is no memory for it$"):
        assert judge.check_plans([wrong, compile_plan(graph)]) == [True, True]


def test_plans_for_absent_devices_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_missing(*asked: object) -> None:
        raise BackendError("no device")

    monkeypatch.setattr("cuts.runtime.session.open_device", raise_missing)
    graph, made = network(), list[CompiledPlan]()
    assert agreement(graph, made).is_right(compile_plan(graph))
    assert agreement(graph, made).check_plans([compile_plan(graph), compile_plan(graph)]) == [True, True]
    assert not made


def test_plain_plan_has_a_kernel_for_each_operation() -> None:
    found = unfused_plan(long_product(), SPEC, GPU_LIKE, CompileOptions())
    assert len(found.plan.steps) == 3
    divided = build_graph(long_product(), SPEC, GPU_LIKE, CompileOptions("no-fusion"))
    assert len(divided.plan.steps) == 4, "where nothing else is asked, long sums are divided"


def pieces() -> Graph:
    """Return a convolution whose residues are pieces of one tensor.

    Each piece is a long sum.
    """
    shapes = {"x": (1, 1024, 3, 3), "w": (1024, 4, 4, 3), "y": (1, 4, 8, 7)}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    node = Node("n", "conv_transpose", ("x", "w"), ("y",), {"strides": (2, 2)})
    return verify_graph(Graph("pieces", ("x", "w"), ("y",), types, (node,)), SPEC.instances.infer)


@pytest.mark.parametrize("one_name", [False, True])
def test_shared_workspace_of_one_launch_is_found(one_name: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of several pieces, in one launch, precede all additions."""
    large(monkeypatch)
    monkeypatch.setattr(
        sys.modules[form_groups.__module__], "partition", lambda partitioner, mode: partitioner.singletons()
    )
    if one_name:
        monkeypatch.setattr("cuts.passes.split.splitting.unused_name", lambda name, types: name)
    graph, options = pieces(), CompileOptions(verify=False)
    plan = build_graph(graph, SPEC, GPU_LIKE, options)
    assert any(len(step.tensors) > 3 for step in plan.plan.steps), "some share a launch"
    judge = PlanValidator(graph, SPEC, lambda: unfused_plan(graph, SPEC, GPU_LIKE, options), lambda: True)
    with pytest.warns(CutsWarning, match="'y'") if one_name else nullcontext():
        assert judge.is_right(plan) == (not one_name)


# ---- searches


def search_plan(graph: Graph, fault: Callable[[CompiledPlan], bool], monkeypatch: pytest.MonkeyPatch) -> CompiledPlan:
    """Return the plan that a search on a made-up clock ships.

    Some of the plans that it makes are wrong.
    """

    def plant_fault(*asked: Any) -> CompiledPlan:
        made = plan_of(*asked)
        return CompiledPlan(wrong_constant(made.plan)) if fault(made) else made

    right = plain(graph)
    monkeypatch.setattr("cuts.compile.driver.plan_of", plant_fault)
    monkeypatch.setattr("cuts.compile.driver.unfused_plan", lambda *asked: right)
    tuning = TuningSession(OPENCL, Tuner(Clock(Database(None), Inline, FakeBench(even), None)), SHORT_SEARCH)
    return tune_graph(graph, SPEC, OPENCL, CompileOptions(), tuning)


def test_a_search_ships_no_wrong_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network()
    fused = len(search_plan(graph, lambda made: False, monkeypatch).plan.steps)
    with pytest.warns(CutsWarning, match="is dropped"):
        found = search_plan(graph, lambda made: len(made.plan.steps) == fused, monkeypatch)
    assert len(found.plan.steps) > fused
    assert all(result.ok for result in found.verify())


def test_search_with_only_wrong_plans_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.warns(CutsWarning, match="is dropped"),
        pytest.raises(NumericsError, match="no plan of 'net' computes what its operations compute one by one"),
    ):
        search_plan(network(), lambda made: True, monkeypatch)


# ---- inputs


def deep(layers: int, dtype: DType = DType.F32) -> Graph:
    """Return a chain of many products.

    Inputs are the weights, which are transposed first.
    """
    size, nodes, inputs = 64, [], ["x"]
    for n in range(layers):
        inputs.append(f"w{n}")
        nodes += [
            Node(f"t{n}", "transpose", (f"w{n}",), (f"t{n}",), {"perm": (1, 0)}),
            Node(f"m{n}", "matmul", ("x" if n == 0 else f"y{n - 1}", f"t{n}"), (f"y{n}",)),
        ]
    types = dict.fromkeys([*inputs, *(v for node in nodes for v in node.outputs)], TensorType(dtype, (size, size)))
    graph = Graph("deep", tuple(inputs), (f"y{layers - 1}",), types, tuple(nodes))
    return verify_graph(graph, SPEC.instances.infer)


@pytest.mark.parametrize("dtype", [DType.F16, DType.F32])
def test_numbers_keep_their_size_through_many_products(dtype: DType) -> None:
    graph = deep(40, dtype)
    scales = input_scales(graph, SPEC.instances)
    assert scales["w7"] == 2.0**-3
    inputs = draw_inputs({n: graph.types[n] for n in graph.inputs}, scales, DISTRIBUTIONS[0])
    found = compile_plan(graph).run(inputs)["y39"].astype(np.float64)
    assert 0.01 < np.sqrt(np.mean(found**2)) < 100.0
    assert are_informative({"y": found})


def test_what_is_constant_or_no_number_tells_nothing() -> None:
    assert are_informative({"y": np.arange(4.0)})
    assert not are_informative({"y": np.ones(4)})
    assert not are_informative({"y": np.array([1.0, np.nan, np.nan, np.inf])})
    assert are_informative({"y": np.ones(4, np.int32)}), "integers may be what they are"
    assert are_informative({"loss": np.array(3.0)})
    assert not are_informative({"loss": np.array(np.inf)})
    assert not are_informative({"y": np.array([np.nan, np.nan])})
    assert are_informative({})


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16, DType.F32, DType.F64])
def test_numbers_move_by_some_part_of_themselves(dtype: DType) -> None:
    x = np.array([1.0, -2.0, 0.0, np.inf, -np.inf] * 9, dtype.numpy)
    found = perturb_arrays({"x": x, "i": np.arange(3), "none": x[:0]}, 0.25, 1)
    parts = {float(a) / float(b) for a, b in zip(found["x"], x, strict=True) if b and np.isfinite(b)}
    assert parts == {0.75, 1.25}
    assert found["x"].dtype == x.dtype
    assert (found["x"][2::5] == 0).all()
    assert np.isposinf(found["x"][3::5].astype(float)).all()
    assert found["i"].tolist() == [0, 1, 2]


def test_inputs_are_drawn_until_outputs_tell_something(monkeypatch: pytest.MonkeyPatch) -> None:
    types = {n: TensorType(DType.F32, (5, 7)) for n in "xay"}
    nodes = (Node("log", "log", ("x",), ("a",)), Node("sum", "softmax", ("a",), ("y",), {"axis": 1}))
    graph = verify_graph(Graph("logs", ("x",), ("y",), types, nodes), SPEC.instances.infer)
    inputs, (found,) = agreement(graph)._outputs([compile_plan(graph)])
    assert (inputs["x"] > 0).all()
    assert are_informative(found)


def test_positive_numbers_and_variances_keep_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = deep(40)
    types, scales = {n: graph.types[n] for n in graph.inputs}, input_scales(graph, SPEC.instances)
    found = compile_plan(graph).run(draw_inputs(types, scales, Distribution(inf)))["y39"]
    assert 0.01 < np.sqrt(np.mean(found.astype(np.float64) ** 2)) < 1e6
    drawn = draw_inputs(types | {"var": TensorType(DType.F32, (9,))}, scales, Distribution(1))
    assert (drawn["var"] > 0).all()
    assert (drawn["x"] < 0).any()


def test_every_input_has_own_numbers_and_valid_integers() -> None:
    types = {f"x{n}": TensorType(DType.F32, (50,)) for n in range(9)} | {"i": TensorType(DType.I64, (50,))}
    inputs = draw_inputs(types, {}, DISTRIBUTIONS[0])
    assert len({array.tobytes() for array in inputs.values()}) == len(types)
    assert set(inputs["i"].tolist()) == {0, 1}
    again = draw_inputs(types, {}, DISTRIBUTIONS[0])
    assert all(np.array_equal(again[name], array) for name, array in inputs.items())


@pytest.mark.parametrize(("size", "step"), [(0, 1), (100, 1), (101, 2), (501, 7), (2400, 29)])
def test_of_large_outputs_a_part_is_looked_at(size: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuts.numerics.sampling.MAX_COMPARED_ELEMENTS", 100)
    assert sampling_step({"y": np.zeros(size)}) == step
    assert (
        sample_elements(np.arange(MIN_SAMPLED_ELEMENTS + 1).reshape(1, -1), step)[-1]
        == MIN_SAMPLED_ELEMENTS // step * step
    )
    assert sample_elements(np.zeros((2, 3)), step).size == 6, "small ones are looked at whole"


def test_wrong_part_of_a_large_output_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    large(monkeypatch)
    monkeypatch.setattr("cuts.numerics.sampling.MAX_COMPARED_ELEMENTS", 20_000)
    graph = unary("sqrt", DType.F32, 200_003)
    plan = compile_plan(graph).plan
    kernels = tuple(evolve(k, source=k.source.replace("sqrt(", "0.9f * sqrt(")) for k in plan.kernels)
    with pytest.warns(CutsWarning, match="of every 11th element in order"):
        assert not agreement(graph).is_right(CompiledPlan(evolve(plan, kernels=kernels)))
