"""Values between products of constants, where threads number the rows."""

from __future__ import annotations

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.graph import Graph
from cuts.ir.types import DType, TensorType
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.inspection.verify import verify_programs
from cuts.passes.layout import choose_layouts
from cuts.passes.layout.accesses import find_aliases, lines_of
from cuts.passes.layout.components import Component
from cuts.passes.layout.number_products import shared_dims

from ..fusion.build import REGISTRY, graph, op
from .test_choose_layouts import check, with_constants

#: A GPU of one SM, so that few rows are work enough.
SMALL_TARGET = evolve(find_target("cuda:sm_90"), NUM_SM=1)


def f32(*shape: int) -> TensorType:
    return TensorType(DType.F32, shape)


def network(rows: int = 64, batch: int = 1) -> Graph:
    """Two dense layers with a function between them.

    Their rows are those of several samples.
    """
    types = {"x": f32(rows, 128), "u": f32(128, 256), "b": f32(256), "v": f32(256, 128)}
    return graph(types, op("h", "gemm", "x", "u", "b"), op("r", "reshape", "h", shape=(batch, rows // batch, 256)),
                 op("g", "gelu", "r"), op("s", "reshape", "g", shape=(rows, 256)),
                 op("y", "gemm", "s", "v"), out="y")  # fmt: skip


def laid_out(made: Graph, sms: int = 1) -> Programs:
    programs = choose_layouts(build_programs(made, REGISTRY), evolve(SMALL_TARGET, NUM_SM=sms))
    verify_programs(programs)
    return programs


def test_the_next_products_reduced_axis_is_outermost() -> None:
    """The rows of all samples stay on end."""
    orders = laid_out(with_constants(network(batch=4), *"ubv")).orders
    assert {name: orders[name] for name in "hrgs"} == {"h": (1, 0), "r": (2, 0, 1), "g": (2, 0, 1), "s": (1, 0)}
    assert {"x", "y"}.isdisjoint(orders)


@pytest.mark.parametrize("mode", ["no-fusion", "fusion", "mixed"])
def test_networks_compute_the_reference(mode: str) -> None:
    check(with_constants(network(batch=4), *"ubv"), mode, target=SMALL_TARGET)


def test_bytes_beside_change_no_layouts() -> None:
    """Matrix instructions multiply bytes, but the graph has no such product."""
    made = with_constants(network(batch=4), *"ubv")
    types = {t: TensorType(DType.U8, (8, 8)) for t in ("image", "level")}
    other = graph(types, op("mask", "greater", "image", "level"), out="mask")
    beside = evolve(
        made,
        inputs=made.inputs + other.inputs,
        outputs=made.outputs + other.outputs,
        types={**made.types, **other.types},
        nodes=made.nodes + tuple(evolve(node, name=f"beside_{node.name}") for node in other.nodes),
    )
    assert laid_out(beside).orders == laid_out(made).orders != {}


def test_few_rows_stay_as_they_are() -> None:
    assert not laid_out(with_constants(network(), *"ubv"), sms=3).orders


def test_weights_that_change_leave_everything_as_it_is() -> None:
    assert not laid_out(network()).orders, "the gradient of the second adds up along the rows"


def attention(*before: object, **types: TensorType) -> Graph:
    """Scores of all pairs of rows, and the sums that they weigh."""
    lines = (op("k", "transpose", "t", perm=(0, 2, 1)), op("s", "matmul", "t", "k"), op("p", "softmax", "s"),
             op("y", "matmul", "p", "t"))  # fmt: skip
    return graph(types, *before, *lines, out="y")


def test_products_of_two_computed_factors_stay_unchanged() -> None:
    made = attention(op("t", "relu", "x"), x=f32(4, 128, 64))
    assert not laid_out(made).orders


def test_batch_dims_differ_from_dims_of_a_factor() -> None:
    """Samples of an attention have products of their own.

    Samples that a matrix of weights multiplies do not.
    """
    made = attention(op("t", "matmul", "x", "w"), x=f32(4, 128, 64), w=f32(64, 64))
    programs = build_programs(with_constants(made, "w"), REGISTRY)
    aliases = find_aliases(programs)
    lines = [line for unit in programs.units for line in lines_of(unit, aliases, ())]
    found = shared_dims(lines, programs.graph.constants)
    assert {("t", 0), ("p", 0)} <= found
    assert {d for tensor, d in found if tensor in ("t", "p")} == {0} and not any(tensor == "x" for tensor, _ in found)
    equal_dims = tuple(frozenset({("t", d), ("p", d)}) for d in (0, 1))
    part = Component(frozenset("tp"), (), equal_dims)
    assert part.in_parallel().matching_dims == equal_dims and part.in_parallel(found).matching_dims == equal_dims[1:]
