"""Runs of dims in another order, where this widens accesses."""

from __future__ import annotations

from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.views import find_views
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.layout import choose_layouts
from cuts.passes.layout.accesses import find_aliases
from cuts.passes.layout.dim_runs import find_runs, rotate_runs
from cuts.passes.layout.fixed_layouts import fixed_tensors
from cuts.passes.partitioning.algorithm_graphs import replace_node

from ..fusion.build import REGISTRY, graph, op
from .test_choose_layouts import GPU, IMAGES, chain, with_constants


def tile_graph(*readers: tuple[str, str, str, int], batch: int = 8, out: str = "y") -> Graph:
    """A product over all images' pixels in one run, between convolutions.

    `uses` reads the run too.
    """
    pads = {"pads": (1, 1, 1, 1)}
    lines = (
        op("a", "conv", "x", "f", **pads), op("b", "transpose", "a", perm=(1, 0, 2, 3)),
        op("c", "reshape", "b", shape=(16, batch * 36)), op("d", "matmul", "w", "c"),
        op("e", "reshape", "d", shape=(16, batch, 6, 6)), op("g", "transpose", "e", perm=(1, 0, 2, 3)),
        op("r", "relu", "g"), op("h", "conv", "r", "f", **pads),
        op("y", "reduce_mean", "h", axes=(2, 3), keepdims=False),
        *(op(name, what, read, axis=axis) for name, what, read, axis in readers),
    )  # fmt: skip
    types = {"x": (batch, 16, 6, 6), "f": (16, 16, 3, 3), "w": (16, 16)}
    made = graph({n: TensorType(DType.F32, shape) for n, shape in types.items()}, *lines, out=out)
    return with_constants(made, "f", "w")


def runs(made: Graph) -> list[set[str]]:
    """The tensors of each run."""
    programs = build_programs(made, REGISTRY)
    fixed = fixed_tensors(programs, find_aliases(programs))
    return [{tensor for tensor, _ in run.dims} for run in find_runs(programs, fixed)]


def laid_out(made: Graph) -> Programs:
    """The programs of a graph, without atoms."""
    programs = choose_layouts(build_programs(made, REGISTRY), GPU)
    verify_programs(programs)
    return programs


def test_the_tiles_of_all_images_are_a_run() -> None:
    assert runs(tile_graph()) == [{"c", "d"}]
    assert not runs(chain(batch=8, kind=DType.F32))
    alone = build_programs(tile_graph(batch=1), REGISTRY)
    assert choose_layouts(alone, GPU) is alone, "rows of a single image precede its columns"


def test_a_run_with_a_known_order_stays() -> None:
    assert not runs(tile_graph(("z", "cumsum", "d", 1), out="y z")), "a sum of what comes before"
    assert not runs(tile_graph(out="y d")), "the caller takes it"


def test_images_come_innermost_and_copies_stay_views() -> None:
    programs = laid_out(tile_graph())
    assert programs.orders["h"] == IMAGES
    statements = {s.target: s for unit in programs.units for s in unit.statements}
    image = next(v for v in statements["c"].axes if v.extent == 8)
    assert statements["c"].write[1].coefficient(image) == 1
    views = find_views(programs).storages
    assert views["c"].buffer == views["b"].buffer == "a" and views["g"].buffer == views["e"].buffer == "d"


def test_a_lone_algorithm_has_its_network_layout() -> None:
    made, instances = chain(batch=8, kind=DType.F32), REGISTRY.instances
    node = made.nodes[2]
    alone = Graph("alone", ("b",), ("c",), {v: made.types[v] for v in "bvc"}, (node,), {"v": made.constants["v"]})
    part = replace_node(alone, node, "winograd_4x4", instances)
    own = choose_layouts(build_programs(part, REGISTRY), GPU, orders={"b": IMAGES, "c": IMAGES})
    whole = laid_out(replace_node(made, node, "winograd_4x4", instances))
    for tensor in ("n2.winograd_4x4.v", "n2.winograd_4x4.m", "n2/winograd_4x4/1.v_sum"):
        assert own.orders[tensor] == whole.orders[tensor]


def test_turning_all_runs_keeps_programs_whole() -> None:
    programs = build_programs(tile_graph(), REGISTRY)
    verify_programs(rotate_runs(programs, tuple(find_runs(programs, fixed_tensors(programs, find_aliases(programs))))))


def test_without_a_choice_nothing_changes() -> None:
    programs = build_programs(tile_graph(), REGISTRY)
    assert choose_layouts(programs, GPU, threads=False) is programs
