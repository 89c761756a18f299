"""Chains of 8-bit floats in registers.

Scales belong to heads, weights are rounded, and sums of a part are promoted. Legal points compute the reference.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from attrs import evolve
from cuts.backends.compilers.cubins import compile_kernels
from cuts.compile.driver import build_graph
from cuts.compile.loading import load_spec
from cuts.ir import MMA_INSTRUCTIONS, PERSISTENT, WITH_PRODUCER
from cuts.ir.compiled import CompileOptions
from cuts.ir.graph import Graph, Node
from cuts.ir.segment import FusedGroup
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.costs.evaluators import Roofline
from cuts.passes.fusion.grouping.convex_merge import convex_merge_candidates, merge_candidate
from cuts.passes.fusion.grouping.group_builder import GroupBuilder
from cuts.passes.fusion.grouping.groups import Group
from cuts.passes.fusion.grouping.partitioner import Partitioner
from cuts.passes.fusion.interpret import interpret
from cuts.passes.fusion.legality import Policy
from cuts.passes.fusion.programs import build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.schedule.selection.choose import choose
from cuts.passes.split.align_operands import align_operands
from cuts.tests.emission import emit

from ..needs import needs_cuda, needs_opencl, needs_toolchain
from .test_attention_chains import GPU
from .test_points import _device, check
from .test_register_chains import WARPGROUP_TARGET, chain_points, compute

ATTENTION = """
op narrow_attention "attention of narrow numbers with scales of heads, of values that lie along keys" {
  type T: float
  in q: T[B, H, M, E], k: T[B, H, N, E], v: T[B, H, F, N], a: f32[H], c: f32[H]
  attr causal: bool = false
  temp p: f32[B, H, M, N], z: f32[B, H, M, N], m: f32[B, H, M], e: f32[B, H, M, N], t: f32[B, H, M], w: T[B, H, M, N]
  out y: bf16[B, H, M, F]
  p[b, h, i, j] = 0.125 * a[h] * (sum[x < E] f32(q[b, h, i, x]) * f32(k[b, h, j, x]))
  z[b, h, i, j] = (p[b, h, i, j] if j <= i else -inf) if causal else p[b, h, i, j]
  m[b, h, i] = max[j < N] z[b, h, i, j]
  e[b, h, i, j] = exp(z[b, h, i, j] - m[b, h, i])
  t[b, h, i] = sum[j < N] e[b, h, i, j]
  w[b, h, i, j] = T(256 * e[b, h, i, j])
  y[b, h, i, f] = bf16((sum[j < N] f32(w[b, h, i, j]) * f32(v[b, h, f, j])) * c[h] / t[b, h, i])
}
"""
NATURAL = ATTENTION.replace("v: T[B, H, F, N]", "v: T[B, H, N, F]").replace("v[b, h, f, j]", "v[b, h, j, f]")
#: A machine whose blocks take several tiles.
PERSISTENT_TARGET = evolve(WARPGROUP_TARGET, NUM_SM=1)


def narrow(
    heads: int, rows: int, columns: int, width: int, dtype: DType, causal: bool = False, natural: bool = False
) -> FusedGroup:
    """Return attention of narrow numbers as one chain.

    Values lie along their columns where they are `natural`.
    """
    shapes = {"q": (1, heads, rows, width), "k": (1, heads, columns, width)}
    shapes["v"] = shapes["k"] if natural else (1, heads, width, columns)
    types = {t: TensorType(dtype, shape) for t, shape in shapes.items()}
    types |= {t: TensorType(DType.F32, (heads,)) for t in "ac"} | {"y": TensorType(DType.BF16, shapes["q"])}
    node = Node("n", "narrow_attention", tuple("qkvac"), ("y",), {"causal": causal})
    registry = Registry.builtin().extend(Source("narrow.cuts", NATURAL if natural else ATTENTION))
    programs = build_programs(Graph("narrow", tuple("qkvac"), ("y",), types, (node,)), registry)
    parts = Partitioner(GroupBuilder(find_views(programs), Policy()), Roofline(GPU))
    groups = parts.singletons()
    found = merge_candidate(parts.builder, next(iter(convex_merge_candidates(parts, groups, parts.owners(groups)))))
    assert isinstance(found, Group), found
    return found.form


@needs_opencl
@pytest.mark.parametrize("dtype", [DType.F8E4M3, DType.F8E5M2])
def test_one_part_computes_the_reference(dtype: DType) -> None:
    group = narrow(1, 40, 50, 32, dtype)
    compute(group, chain_points(group, WARPGROUP_TARGET, 1, kind="m64")[0], WARPGROUP_TARGET)


@needs_opencl
@pytest.mark.parametrize("causal", [False, True])
def test_promoted_parts_compute_the_reference(causal: bool) -> None:
    group = narrow(1, 144, 144, 32, DType.F8E4M3, causal)
    points, kind = chain_points(group, PERSISTENT_TARGET, 99, kind="m64"), WITH_PRODUCER if causal else PERSISTENT
    compute(group, next(s for s in points if s.segments[2].reductions[0].tma == kind), PERSISTENT_TARGET)


def test_parts_end_with_whole_instructions() -> None:
    """A promoted part is no longer than its interval."""
    points = chain_points(narrow(1, 144, 208, 32, DType.F8E4M3), PERSISTENT_TARGET, 99, kind="m64")
    parts = {s.segments[2].reductions[0].dims[0].block_k for s in points}
    atom = MMA_INSTRUCTIONS[points[0].segments[2].reductions[0].mma]
    assert parts and all(part % atom.k == 0 and part <= atom.every for part in parts)


def test_values_along_columns_are_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("cuts.passes.split.align_operands"), "MIN_PRODUCTS", 1)
    group, generator = narrow(2, 20, 41, 32, DType.F8E4M3, natural=True), np.random.default_rng(0)
    copy, chain = align_operands(group)
    kinds = {t: group.tensors[t] for t in group.inputs}
    inputs = {t: generator.standard_normal(kind.shape).astype(kind.dtype.numpy) for t, kind in kinds.items()}
    assert chain.tensors[copy.outputs[0]].shape == (1, 2, 32, 48)
    found = interpret(chain, inputs | interpret(copy, inputs))
    for name, expected in interpret(group, inputs).items():
        np.testing.assert_array_equal(found[name], expected)
    assert align_operands(narrow(2, 20, 41, 32, DType.F8E4M3)) == ()


def written_out(heads: int, rows: int, width: int) -> Graph:
    """Return attention of narrow numbers as elementwise operations and products."""
    whole, scores = (1, heads, rows, width), (1, heads, rows, rows)
    shapes = dict.fromkeys(("q", "k", "v", "q.wide", "k.wide", "v.wide", "y"), whole) | {
        "k.turned": (1, heads, width, rows)
    }
    shapes |= dict.fromkeys(("p", "z", "e", "w", "w.wide"), scores) | dict.fromkeys(("m", "t"), (*scores[:3], 1))
    narrow = {t: TensorType(DType.F8E4M3, shapes[t]) for t in ("q", "k", "v", "w")}
    last = {"axes": (-1,), "keepdims": True}
    nodes = (
        *(Node(f"{t}.cast", "cast", (t,), (f"{t}.wide",), {"to": "f32"}) for t in "qkv"),
        Node("turn", "transpose", ("k.wide",), ("k.turned",), {"perm": (0, 1, 3, 2)}),
        Node("p", "matmul", ("q.wide", "k.turned"), ("p",)),
        Node("m", "reduce_max", ("p",), ("m",), last),
        Node("z", "sub", ("p", "m"), ("z",)),
        Node("e", "exp", ("z",), ("e",)),
        Node("t", "reduce_sum", ("e",), ("t",), last),
        Node("w", "cast", ("e",), ("w",), {"to": "f8e4m3"}),
        Node("wide", "cast", ("w",), ("w.wide",), {"to": "f32"}),
        Node("y", "matmul", ("w.wide", "v.wide"), ("y",)),
    )
    types = {t: narrow.get(t, TensorType(DType.F32, shape)) for t, shape in shapes.items()}
    return Graph("written", ("q", "k", "v"), ("y", "t"), types, nodes)


def test_rounded_weights_pass_to_their_product() -> None:
    plan = build_graph(written_out(16, 2048, 128), load_spec([]), GPU, CompileOptions()).plan
    (product,) = (k for k in plan.kernels if "e4m3.e4m3" in k.source)
    assert len(plan.steps) == 2  # values are transposed first
    assert "m64n128k32" in product.source and "ex2" in product.source


@needs_toolchain
def test_chosen_kernels_spill_nothing() -> None:
    group = narrow(64, 4096, 4096, 128, DType.F8E4M3)
    best = choose(group, GPU, count=1)[0].schedule
    assert best.segments[2].reductions[0].tma in (WITH_PRODUCER, PERSISTENT)
    (cubin,) = compile_kernels([emit(extract(lower(group, best, {}, GPU)), "cuda")], GPU.arch)
    assert (cubin.spill_bytes, cubin.serialised) == (0, "")


@needs_cuda
@pytest.mark.parametrize("causal", [False, True])
def test_chosen_kernels_compute_the_reference_on_a_gpu(causal: bool) -> None:
    group = narrow(4, 272, 400, 128, DType.F8E4M3, causal)
    check(_device("cuda"), GPU, group, choose(group, GPU, count=1)[0].schedule)
