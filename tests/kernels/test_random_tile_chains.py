"""Gradients of attention as chains in registers, drawn at random.

Legal points compute the reference for any type, groups of heads, tails, masked rows, strides, and with NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import pytest
from attrs import frozen
from cuts.ir.compiled import Storage
from cuts.ir.graph import Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.sums import recompute_contractions
from cuts.passes.fusion.views import find_views
from cuts.passes.geometry import tile_chain
from cuts.passes.lowering import check_barriers
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule import chain_templates
from cuts.passes.schedule.check_schedules import check_schedule
from cuts.tests.amounts import examples
from cuts.tests.emission import emit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ..needs import needs_opencl
from .judging import judge
from .test_attention_chains import GPU
from .test_points import _device, _run
from .test_register_chains import WARPGROUP_TARGET
from .test_tile_chains import points_of

Array = np.ndarray[Any, Any]
_SUPPRESSED_CHECKS = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@frozen
class Attention:
    """Sizes of attention, type and mask; `shared` heads have common keys."""

    heads: int
    shared: int
    queries: int
    keys: int
    width: int
    values: int
    dtype: DType
    mask: str = ""

    def graph(self) -> Graph:
        """Return the gradients, those of keys for each head of queries."""
        heads, groups = (2, self.heads), (2, self.heads // self.shared)
        rows, keys, square = (*heads, self.queries), (*groups, self.keys), (*heads, self.queries, self.keys)
        each = (*heads, self.keys)
        shapes = {"q": (*rows, self.width), "k": (*keys, self.width), "v": (*keys, self.values)}
        shapes |= dict.fromkeys(("y", "dy"), (*rows, self.values)) | {"w": square, "x": square}
        shapes |= {"dq": (*rows, self.width), "dk": (*each, self.width), "dv": (*each, self.values)}
        shapes |= dict.fromkeys(("wt", "xt"), (*each, self.queries)) | {"each": (*each, self.width)}
        wide = (*groups, self.shared, self.keys, self.width)
        shapes |= {"one": (*groups, 1, self.keys, self.width), "wide": wide}
        types = {name: TensorType(self.dtype, shape) for name, shape in shapes.items()}
        types["l"], operands = TensorType(DType.F32, rows), ["q", "k", "v", "y", "l", "dy"]
        if self.mask == "bool":
            types["mask"] = TensorType(DType.BOOL, (2, 1, self.queries, self.keys))
            operands.append("mask")
        turned = {"perm": (0, 1, 3, 2)}
        nodes = (
            Node("s", "attention_scores_gradient", tuple(operands), ("w", "x"), {"causal": self.mask == "causal"}),
            Node("one", "reshape", ("k",), ("one",), {"shape": shapes["one"]}),
            Node("wide", "expand", ("one",), ("wide",), {"shape": wide}),
            Node("each", "reshape", ("wide",), ("each",), {"shape": shapes["each"]}),
            Node("tx", "transpose", ("x",), ("xt",), turned),
            Node("tw", "transpose", ("w",), ("wt",), turned),
            Node("k", "matmul", ("xt", "q"), ("dk",)),
            Node("v", "matmul", ("wt", "dy"), ("dv",)),
            Node("q", "matmul", ("x", "each"), ("dq",)),
        )
        return Graph("gradient", tuple(operands), ("dq", "dk", "dv"), types, nodes)

    def groups(self) -> Iterator[Group]:
        """Yield the chains of both sides."""
        programs = recompute_contractions(build_programs(self.graph(), Registry.builtin()))
        builder, names = GroupBuilder(find_views(programs), Policy()), [u.name for u in programs.units]
        for tiles in (n for n in names if n.endswith(".tiles")):
            copies = ("one", "wide", "each") if tiles.startswith("q") else ()
            group = builder.form(((tiles,), (*copies, tiles.replace(".tiles", ".products"))))
            assert isinstance(group, Group), group
            yield group

    def inputs(self, seed: int) -> dict[str, Array]:
        """Return random operands and logarithms of sums; every seventh row is masked."""
        generator, graph = np.random.default_rng(seed), self.graph()
        found = {
            t: generator.standard_normal(graph.types[t].shape).astype(graph.types[t].dtype.numpy)
            for t in (*graph.inputs, "d") if t in graph.types and t != "mask"
        }  # fmt: skip
        keys = np.repeat(found["k"].astype(np.float64), self.shared, 1)
        scores = np.einsum("bhie,bhje->bhij", found["q"].astype(np.float64), keys) / np.sqrt(self.width)
        if self.mask == "bool":
            found["mask"] = generator.random(graph.types["mask"].shape) < 0.7
            found["mask"][:, :, ::7] = False
            scores = np.where(found["mask"], scores, -inf)
        if self.mask == "causal":
            scores = np.where(np.tri(self.queries, self.keys, dtype=bool), scores, -inf)
        with np.errstate(divide="ignore"):
            sums = np.log(np.exp(scores).sum(-1))
        found["l"] = np.where(np.isinf(sums), inf, sums).astype(np.float32)
        return found


@st.composite
def attentions(draw: st.DrawFn, kinds: tuple[str, ...] = ("", "causal", "bool")) -> Attention:
    """Draw attention of any sizes."""
    shared = draw(st.sampled_from((1, 1, 2)))
    heads, width = shared * draw(st.sampled_from((1, 2))), draw(st.sampled_from((16, 32, 40)))
    queries, keys = (draw(st.sampled_from((50, 64, 77, 130))) for _ in range(2))
    values, dtype = draw(st.sampled_from((width, 24))), draw(st.sampled_from((DType.F16, DType.BF16)))
    return Attention(heads, shared, queries, keys, width, values, dtype, draw(st.sampled_from(kinds)))


def inputs_of(group: Group, own: dict[str, Array]) -> dict[str, Array]:
    """Return operands by the names of a chain's form; others are random."""
    generator, found = np.random.default_rng(1), dict[str, Array]()
    for name in group.form.inputs:
        kind, tensor = group.form.tensors[name], group.tensors[name]
        array = own[tensor] if tensor in own else generator.standard_normal(kind.shape)
        found[name] = array.astype(kind.dtype.numpy)
    return found


def kernel_results(
    group: Group, schedule: Schedule, inputs: dict[str, Array], strided: tuple[str, ...] = ()
) -> dict[str, Array]:
    """Return a legal point's results; heads of `strided` operands lie within positions."""
    assert check_schedule(group.form, schedule, WARPGROUP_TARGET) == []
    storages, placed = {}, dict(inputs)
    for name in strided:
        _, h, n, e = inputs[name].shape
        storages[name] = Storage(name, 0, (n * h * e, e, h * e, 1))
        placed[name] = inputs[name].transpose(0, 2, 1, 3)
    kernel = lower(group.form, schedule, storages, WARPGROUP_TARGET)
    assert check_barriers(kernel) == ()
    return _run(_device("opencl"), emit(extract(kernel), "opencl"), group.form, placed)


def check_against_reference(group: Group, inputs: dict[str, Array], found: dict[str, Array]) -> None:
    """Assert that results are the reference's."""
    expected = interpret(group.form, inputs)
    for name in group.form.outputs:
        result = judge(name, group.form, inputs, found[name], expected[name])
        assert result.error <= result.tolerance, result


@needs_opencl
@settings(max_examples=examples(6, 150), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(attentions(), st.integers(0, 99), st.data())
def test_random_chains_compute_the_reference(sizes: Attention, seed: int, data: st.DataObject) -> None:
    own = sizes.inputs(seed)
    for group in sizes.groups():
        points, inputs = points_of(group.form, 9), inputs_of(group, own)
        operands = [t for t in group.form.inputs if len(group.form.tensors[t].shape) == 4 and inputs[t].dtype != bool]
        strided = data.draw(st.lists(st.sampled_from(operands), unique=True))
        schedule = data.draw(st.sampled_from(points))
        check_against_reference(group, inputs, kernel_results(group, schedule, inputs, tuple(strided)))


@needs_opencl
@settings(max_examples=examples(4, 80), deadline=None, suppress_health_check=_SUPPRESSED_CHECKS)
@given(attentions(("", "causal")), st.data())
def test_nan_reaches_the_same_results(sizes: Attention, data: st.DataObject) -> None:
    """The NaN of a masked element may reach the reference's results only."""
    own = sizes.inputs(0)
    tensor = data.draw(st.sampled_from(("q", "k", "v", "dy", "l")))
    own[tensor].reshape(-1)[data.draw(st.integers(0, own[tensor].size - 1))] = np.nan
    for group in sizes.groups():
        inputs = inputs_of(group, own)
        found = kernel_results(group, points_of(group.form, 1)[0], inputs)
        expected = interpret(group.form, inputs)
        for name in group.form.outputs:
            right, own_nan = np.isnan(expected[name]), np.isnan(found[name].astype(np.float32))
            assert not (own_nan & ~right).any() and (sizes.mask or (own_nan == right).all())
            both = {t: np.where(right, 0, x[name]).astype(x[name].dtype) for t, x in (("f", found), ("e", expected))}
            result = judge(name, group.form, inputs, both["f"], both["e"])
            assert result.error <= result.tolerance, result


@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
def test_heads_that_share_keys_stage_each_factor_once(shared: int, dtype: DType) -> None:
    sides = [tile_chain(group.form) for group in Attention(4, shared, 128, 128, 64, 64, dtype, "causal").groups()]
    assert [side.again for side in sides if side is not None] == [(0, 1), (0,)]


def test_wide_types_have_no_such_chains() -> None:
    groups = [*Attention(2, 1, 128, 128, 64, 64, DType.F32).groups()]
    assert groups
    assert not any(list(chain_templates(group.form, GPU)) for group in groups)
