"""Sibling fusion: independent results of one tensor share one pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cuts
import numpy as np
import pytest
from cuts.backends.devices import find_target, open_device
from cuts.compile.driver import compile_model
from cuts.compile.loading import spec_of_texts
from cuts.ir import CompileOptions, DType, Graph, Index, Read, Statement, TensorType, Var, as_index
from cuts.numerics.tolerance import tolerance
from cuts.ops import Registry
from cuts.passes.costs.analytic_cost import AnalyticCost
from cuts.passes.fusion import Group, GroupBuilder, Partitioner, Policy, build_programs, find_views, partition
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.normalise import Illegal, normalise
from cuts.passes.schedule import choose
from cuts.passes.split.split_reduction import split_reduction
from hypothesis import given, settings
from hypothesis import strategies as st

from ..kernels.cases import arrays, builder
from ..kernels.extremes import extremes
from ..kernels.test_points import check
from ..needs import DEVICES, needs_opencl

GPU = find_target("cuda:h200")
HOST = find_target("opencl")
TYPES = (DType.F32, DType.F16, DType.BF16, DType.I8, DType.I32, DType.I64)
SUMS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_sum_square", "reduce_l1")


def _partitioner(graph: Graph) -> Partitioner:
    shop = GroupBuilder(find_views(build_programs(graph, Registry.builtin())), Policy())
    return Partitioner(shop, AnalyticCost(GPU))


def _sums(ops: tuple[str, ...], shape: tuple[int, ...], axes: tuple[int, ...], dtype: DType = DType.F32) -> Graph:
    """Return several reductions of one tensor over the same axes."""
    make = builder()
    data = make.input(*shape, dtype=dtype)
    outputs = tuple(make.node(op, data, axes=axes, keepdims=False) for op in ops)
    return Graph("sums", tuple(make.inputs), outputs, dict(make.types), tuple(make.nodes))


def _form_groups(graph: Graph) -> list[Group]:
    return partition(_partitioner(graph), "mixed")


def test_sums_of_one_tensor_are_one_pass() -> None:
    (group,) = _form_groups(_sums(("reduce_sum", "reduce_max", "reduce_sum_square"), (64, 64, 56, 56), (0, 2, 3)))
    assert len(group.form.segments[0].reductions) == 3
    assert len(group.form.inputs) == 1


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_pass_and_its_parts_equal_each_sum(data: st.DataObject) -> None:
    ops = tuple(data.draw(st.lists(st.sampled_from(SUMS), min_size=2, max_size=4, unique=True)))
    shape = tuple(data.draw(st.lists(st.integers(0, 6), min_size=2, max_size=4)))
    axes = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1, max_size=len(shape)))))
    dtype = data.draw(st.sampled_from(TYPES))
    graph = _sums(ops, shape, axes, dtype)
    maker = _partitioner(graph)
    if not maker.singletons():
        assert all(graph.types[t].size == 0 for t in graph.outputs)
        return
    group = _merge_all(maker)
    inputs = arrays(group.form, 1)
    _plant(data, inputs, dtype)
    with np.errstate(all="ignore"):
        expected = interpret(group.form, inputs)
        for single in maker.singletons():
            own = {t: inputs[_name(group, single.tensors[t])] for t in single.form.inputs}
            (value,) = interpret(single.form, own).values()
            np.testing.assert_allclose(expected[_name(group, single.outputs[0])], value, rtol=1e-12, atol=1e-12)
        halves = split_reduction(group.form, 2)
        if halves is not None:
            before, after = halves
            partial = interpret(before, {t: inputs[t] for t in before.inputs})
            found = interpret(after, {t: (inputs | partial)[t] for t in after.inputs})
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9)


def _plant(data: st.DataObject, inputs: dict[str, Any], dtype: DType) -> None:
    """Put numbers at which sums of a type go wrong into tensors: the ends of integers, and NaN."""
    odd = [np.nan, np.inf, -np.inf] if dtype.is_float else extremes(dtype).tolist()
    for values in inputs.values():
        for _ in range(data.draw(st.integers(0, 3)) if values.size else 0):
            values.flat[data.draw(st.integers(0, values.size - 1))] = data.draw(st.sampled_from(odd))


def _merge_all(maker: Partitioner) -> Group:
    """Return all groups of a graph as one."""
    group, *others = maker.singletons()
    for other in others:
        fused = maker.builder.fuse(group, other)
        assert isinstance(fused, Group), fused
        group = fused
    return group


@needs_opencl
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(5, 7, 33), (3, 64, 40)], ids=str)
def test_kernels_of_passes_and_parts_are_right(dtype: DType, shape: tuple[int, ...]) -> None:
    """Compute all sums of one kernel, then shorter last parts.

    Each has a workspace of its own.
    """
    form = _merge_all(_partitioner(_sums(("reduce_sum", "reduce_max", "reduce_min"), shape, (0, 2), dtype))).form
    halves = split_reduction(form, 3)
    assert halves is not None
    assert len(halves[0].outputs) == 3
    device = open_device(HOST)
    for group in (form, *halves):
        for candidate in choose(group, HOST, count=2):
            check(device, HOST, group, candidate.schedule)


#: An empty reduction, an empty result, and a single row.
SPARSE = ((3, 0, 5), (0, 4, 3), (2, 5, 0), (0, 0, 0), (1, 1, 1), (1, 9, 1))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_plans_are_right_for_empty_and_extreme_sums(dtype: DType, device: str) -> None:
    """Integer sums wrap around.

    Each empty sum is the identity of its declaration.
    """
    for shape in (*SPARSE, (3, 13, 2)):
        for ops, axes in ((SUMS, (1,)), (SUMS, (0, 2)), (SUMS[:2], (0, 1, 2))):
            graph = _sums(ops, shape, axes, dtype)
            plan = cuts.build(graph, target=device, mode="fusion")
            for data in _extreme(dtype, shape):
                inputs = dict.fromkeys(graph.inputs, data)
                with np.errstate(all="ignore"):
                    found, expected = plan.run(inputs), plan.reference(inputs)
                for name, value in expected.items():
                    allowed = 4 * tolerance(dtype, data.size)
                    np.testing.assert_allclose(found[name].astype(value.dtype), value, rtol=allowed, atol=allowed)


def _extreme(dtype: DType, shape: tuple[int, ...]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the ends of an integer type, or random numbers with one that is none among them."""
    if not dtype.is_float:
        yield np.resize(extremes(dtype), shape)
        return
    for odd in (np.nan, np.inf, -np.inf):
        data = np.random.default_rng(0).standard_normal(shape).astype(dtype.numpy)
        if data.size:
            data.flat[data.size // 2] = odd
        yield data


def _name(group: Group, tensor: str) -> str:
    """Return the name of a graph tensor in a group's form."""
    return next(name for name, own in group.tensors.items() if own == tensor)


def _halves(rows: int, columns: int, dtype: DType) -> Graph:
    """Return sums and differences of the halves of rows, as a rotation makes them, and a result of one row less."""
    make = builder()
    data, other = make.input(rows, 2 * columns, dtype=dtype), make.input(rows, columns, dtype=dtype)
    ends = ((0, columns), (columns, 2 * columns))
    first, second = (make.node("slice", data, starts=(a,), ends=(b,), axes=(1,)) for a, b in ends)
    outputs = tuple(make.node("add", make.node("mul", x, other), y) for x, y in ((first, second), (second, first)))
    outputs += (make.node("neg", make.node("slice", other, starts=(1,), ends=(rows,), axes=(0,))),)
    return Graph("halves", tuple(make.inputs), outputs, dict(make.types), tuple(make.nodes))


def test_results_of_one_large_tensor_are_one_pass() -> None:
    first, *others = _form_groups(_halves(512, 256, DType.F32))
    assert len(first.form.outputs) == 2
    assert len(first.form.inputs) == 3, "two halves and the factor"
    assert len(others) == 1, "rows of another number are no siblings"


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(130, 127), (512, 33), (1, 1), (0, 4)], ids=str)
def test_passes_of_elements_are_right(dtype: DType, shape: tuple[int, int], device: str) -> None:
    graph = _halves(*shape, dtype)
    plan = cuts.build(graph, target=device, mode="fusion")
    inputs: dict[str, Any] = {}
    for seed, name in enumerate(graph.inputs):
        values = next(_extreme(dtype, graph.types[name].shape))
        inputs[name] = np.roll(values, seed) if values.size else values
    with np.errstate(all="ignore"):
        found, expected = plan.run(inputs), plan.reference(inputs)
    for name, value in expected.items():
        allowed = 4 * tolerance(dtype, 2)
        np.testing.assert_allclose(found[name].astype(value.dtype), value, rtol=allowed, atol=allowed)


def test_an_indirectly_dependent_sum_is_no_sibling() -> None:
    """The second sum depends on the first through a long path.

    One kernel cannot have both.
    """
    make = builder()
    data = make.input(64, 4096)
    total = make.node("reduce_sum", data, axes=(0,), keepdims=True)
    ordered = make.node("cumsum", total, axis=1)
    other = make.node("reduce_max", make.node("mul", data, ordered), axes=(0,), keepdims=True)
    graph = Graph("chain", tuple(make.inputs), (other,), dict(make.types), tuple(make.nodes))
    maker = _partitioner(graph)
    groups = partition(maker, "mixed")
    assert maker.topological_order(groups) is not None
    assert len(groups) > 1


def test_a_product_of_matrices_has_no_siblings() -> None:
    make = builder()
    data = make.input(512, 512)
    outputs = tuple(make.node("matmul", data, make.input(512, 512)) for _ in range(2))
    graph = Graph("products", tuple(make.inputs), outputs, dict(make.types), tuple(make.nodes))
    maker = _partitioner(graph)
    assert not any(maker.sibling_keys(group) for group in maker.singletons())


def test_results_of_equal_elements_join() -> None:
    """Axes have another order, or one is split in two.

    They match by the elements read, not by lengths.
    """
    a, b, c, d, e = Var("a", 8), Var("b", 8), Var("c", 8), Var("d", 8), Var("e", 64)
    terms = Var("r", 512), Var("s", 512), Var("t", 512)
    first = _sum("first", (a, b), "x", (as_index(a) * 8 + b, as_index(terms[0])), terms[0])
    turned = _sum("turned", (c, d), "x", (as_index(d) * 8 + c, as_index(terms[1])), terms[1])
    flat = _sum("flat", (e,), "x", (as_index(e), as_index(terms[2])), terms[2])
    tensors = {
        "x": TensorType(DType.F32, (64, 512)),
        "first": TensorType(DType.F32, (8, 8)),
        "turned": TensorType(DType.F32, (8, 8)),
        "flat": TensorType(DType.F32, (64,)),
    }
    form = normalise((first, turned, flat), tensors, ("first", "turned", "flat"))
    assert not isinstance(form, Illegal), form
    assert len(form.segments[0].reductions) == 1, "all three sum the same elements"
    inputs = {"x": np.random.default_rng(0).standard_normal((64, 512))}
    found = interpret(form, inputs)
    np.testing.assert_allclose(found["flat"], inputs["x"].sum(1))
    np.testing.assert_allclose(found["first"], inputs["x"].sum(1).reshape(8, 8))
    np.testing.assert_allclose(found["turned"], inputs["x"].sum(1).reshape(8, 8).T)


def _sum(target: str, axes: tuple[Var, ...], tensor: str, indices: tuple[Index, ...], reduce: Var) -> Statement:
    return Statement(target, axes, tuple(map(as_index, axes)), Read(tensor, indices), (reduce,), "sum")


@pytest.mark.parametrize("size", [(32, 64, 112), (16, 128, 28)])
def test_sums_of_norm_gradients_take_two_passes(size: tuple[int, int, int]) -> None:
    """One for the mean, one for everything that is summed about it."""
    batch, channels, extent = size
    make = builder()
    data, given_ = (make.input(batch, channels, extent, extent) for _ in range(2))
    mean = make.node("reduce_mean", data, axes=(0, 2, 3), keepdims=True)
    left = make.node("sub", data, mean)
    square = make.node("reduce_sum_square", left, axes=(0, 2, 3), keepdims=True)
    weighed = make.node("reduce_sum", make.node("mul", left, given_), axes=(0, 2, 3), keepdims=True)
    total = make.node("reduce_sum", given_, axes=(0, 2, 3), keepdims=True)
    graph = Graph("norm", tuple(make.inputs), (square, weighed, total), dict(make.types), tuple(make.nodes))
    compiled = compile_model(graph, spec_of_texts({}), GPU, CompileOptions())
    assert sum(given_ in step.tensors for step in compiled.steps) == 1
    assert len(compiled.steps) <= 4, "a mean and its parts, all other sums and theirs"
