"""Names of kernels: their operations, and a digest of their content."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.backends.source.emit import emit
from cuts.compile.loading import load_spec
from cuts.ir.compiled import MAX_LABEL, CompiledGraph, CompileOptions, KernelFunction, kernel_label
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.pipeline import compile_graph
from cuts.passes.schedule.selection.choose import choose
from cuts.search.building.factory import BuildResult
from cuts.search.tasks import TuningTask, make_kernel
from cuts.tests.amounts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ..fusion.build import REGISTRY, graph, op
from ..fusion.test_horizontal_fusion import GPU, tables
from ..search.fakes import group_of

NAME = re.compile(r"([a-z][a-z0-9_]*)_([0-9a-f]{16})(_waits)?")


def compile_checked(
    model: Graph, target: Any = GPU, registry: Registry = REGISTRY, mode: Any = "mixed"
) -> CompiledGraph:
    """Compile a graph; kernels have different names, each that of a function."""
    found = compile_graph(model, registry, target, CompileOptions(mode=mode), emit)  # type: ignore[arg-type]
    names = [kernel.name for kernel in found.kernels]
    assert len({*names}) == len(names)
    for kernel in found.kernels:
        assert NAME.fullmatch(kernel.name) and "__" not in kernel.name
        assert kernel.source.count(kernel.name) == 1 and f"{kernel.name}(" in kernel.source
    return found


def labels(model: Graph, **options: Any) -> list[str]:
    """Return the operations in the names of all launches' kernels."""
    found = compile_checked(model, **options)
    matches = [NAME.fullmatch(found.kernels[step.kernel].name) for step in found.steps]
    return [match.group(1) for match in matches if match]


def product(rows: int = 64) -> Graph:
    """Return a product, a bias and a gelu."""
    return graph(
        {"x": (rows, 64), "w": (64, 64), "b": (64,)},
        op("m", "matmul", "x", "w"),
        op("a", "add", "m", "b"),
        op("y", "gelu", "a"),
        out="y",
    )


@pytest.mark.parametrize("target", ["opencl", "cuda:sm_80", "cuda:sm_90"])
def test_symbols_name_fused_operations(target: str) -> None:
    assert labels(product(), target=find_target(target)) == ["matmul_add_gelu"]


def test_symbols_name_reductions_copies_and_scatters() -> None:
    x = {"x": (32, 48)}
    assert labels(graph(x, op("y", "reduce_sum", "x", axes=(1,)), out="y")) == ["reduce_sum"]
    assert labels(graph(x, op("y", "transpose", "x", perm=(1, 0)), out="y")) == ["transpose"]
    places = {"x": (32, 48), "i": TensorType(DType.I32, (4, 48)), "u": (4, 48)}
    found = labels(graph(places, op("y", "scatter_elements", "x", "i", "u", axis=0), out="y"))
    assert {*found} == {"scatter_elements"}


def test_symbol_of_a_shared_launch_names_operations_once() -> None:
    assert labels(tables(26)) == ["gather"]


def test_equal_layers_share_a_symbol() -> None:
    lines = [op(f"m{n + 1}", "matmul", f"m{n}", "w") for n in range(3)]
    found = compile_checked(graph({"m0": (64, 64), "w": (64, 64)}, *lines, out="m3"), mode="no-fusion")
    assert len(found.steps) == 3 and len(found.kernels) == 1


def test_names_do_not_depend_on_earlier_graphs(tmp_path: Path) -> None:
    """Equal groups of another graph were computed by other operations."""
    first = graph({"x": (32, 48)}, op("y", "transpose", "x", perm=(1, 0)), out="y")
    file = tmp_path / "own.cuts"
    file.write_text('op Turned_2 "the transpose" {\ntype T: float\nin x: T[m, n]\nout y: T[n, m]\ny[j, i] = x[i, j]\n}')
    registry = load_spec([file]).registry
    second = graph({"x": (32, 48)}, op("y", "transpose", "x", perm=(1, 0)), out="y")
    second = evolve(second, nodes=(evolve(second.nodes[0], op="Turned_2", attributes={}),))
    (one,), (two,) = compile_checked(first).kernels, compile_checked(second, registry=registry).kernels
    assert one.with_label() == two.with_label() and one.name.startswith("transpose_")
    assert two.name == one.name.replace("transpose", "turned_2")


@settings(max_examples=examples(100, 1000), deadline=None)
@given(st.lists(st.text(max_size=40), max_size=6))
def test_any_name_of_an_operation_gives_an_identifier(names: list[str]) -> None:
    label = kernel_label(names)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", label) and "__" not in label and len(label) <= MAX_LABEL
    assert label == kernel_label([*names, *names])


@pytest.mark.parametrize(
    ("names", "label"),
    [
        ([], "cuts"),
        (["___"], "cuts"),
        (["_3", "Größe"], "cuts_3_gr_e"),
        (["matmul", "add", "matmul", "gelu"], "matmul_add_gelu"),
        (["layer_normalisation", "rotary_embedding", "add"], "layer_normalisation_rotary"),
        (["x" * 60], "x" * MAX_LABEL),
    ],
)
def test_labels_are_short(names: list[str], label: str) -> None:
    assert kernel_label(names) == label


def test_labels_change_no_key() -> None:
    """A task's key and the digest of the text identify measurements."""
    form = group_of("matmul", ((64, 64), (64, 64)))
    named = evolve(form, operations=("matmul", "rotate"))
    tasks = [TuningTask(each, {}, GPU, {}) for each in (form, named)]
    assert tasks[0].key == tasks[1].key
    kernels = [make_kernel(task, choose(form, GPU)[0].schedule) for task in tasks]
    assert kernels[1].name.startswith("matmul_rotate_") and kernels[0].name != kernels[1].name
    assert len({BuildResult(kernel).source for kernel in kernels}) == 1
    assert pickle.loads(pickle.dumps(named)).operations == named.operations


def test_names_of_library_routines_stay() -> None:
    routine = KernelFunction("cublas_gemm_0123456789ab", "library", "", (1, 1, 1), (1, 1, 1), ())
    assert routine.with_label(["matmul"]) is routine
