"""Contraction recompute before dependent contractions.

Statements keep their meaning, and no tensor as large as the scores is stored. Where another node reads the scores, they
stay.
"""

from __future__ import annotations

import cuts
import numpy as np
import pytest
from attrs import evolve
from cuts.ir.graph import Graph, Node
from cuts.ir.statement import Program, Statement
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.reference import evaluate, evaluate_graph
from cuts.passes.fusion.fold_units import drop_unused
from cuts.passes.fusion.programs import Programs, build_programs
from cuts.passes.fusion.sums import contraction_recompute
from cuts.passes.fusion.sums.contraction_recompute import Family, RecomputeChoice, recompute_contractions
from cuts.passes.fusion.sums.deferred_normalisation import defer_normalisation
from cuts.passes.fusion.sums.reduction_cse import eliminate_common_reductions
from cuts.passes.fusion.sums.sum_interchange import interchange_sums
from cuts.passes.inspection.verify import verify_programs
from cuts.tests.operations import DIFFERENTIABLE
from cuts.tests.operations_graph import bench_of

from .build import graph, op

#: Shapes of (batch, heads, heads of keys, queries, keys, width), attributes, a mask, and whether the result is an
#: output besides the gradients.
CASES: dict[str, tuple[tuple[int, ...], dict[str, object], TensorType | None, bool]] = {
    "alone": ((1, 2, 2, 96, 96, 4), {}, None, False),
    "after the forward pass": ((1, 2, 2, 96, 96, 64), {}, None, True),
    "other lengths": ((2, 1, 1, 80, 112, 4), {}, None, False),
    "causal": ((1, 2, 2, 96, 96, 64), {"causal": True}, None, True),
    "heads in groups": ((1, 4, 2, 96, 96, 64), {}, None, True),
    "softcap": ((1, 1, 1, 96, 96, 4), {"softcap": 3.0}, None, False),
    "masked": ((1, 2, 2, 96, 96, 4), {}, TensorType(DType.BOOL, (1, 1, 1, 96)), False),
    "biased": ((1, 1, 1, 96, 96, 4), {}, TensorType(DType.F32, (1, 1, 96, 96)), False),
}


def gradient(name: str) -> tuple[Graph, Registry]:
    """Return the gradients of attention for three operands, and the declarations."""
    (b, h, g, m, n, e), attributes, mask, forward = CASES[name]
    shapes = {"q": (b, h, m, e), "k": (b, g, n, e), "v": (b, g, n, e), "y": (b, h, m, e), "dy": (b, h, m, e)}
    types = {t: TensorType(DType.F32, shape) for t, shape in shapes.items()} | ({"mask": mask} if mask else {})
    operands = ("q", "k", "v", "mask") if mask else ("q", "k", "v")
    node = Node("a", "attention", operands, ("y",), attributes)
    made = cuts.grad(Graph("a", (*operands, "dy"), ("y",), types, (node,)), loss="y", wrt=["q", "k", "v"], given="dy")
    outputs = (*made.gradients.values(), *(("y",) if forward else ()))
    return evolve(made.graph, inputs=(*operands, "dy"), outputs=outputs), made.spec.registry


def prepare_programs(graph: Graph, registry: Registry) -> Programs:
    """Return the statements after the earlier passes."""
    return eliminate_common_reductions(drop_unused(build_programs(graph, registry)))


def values(programs: Programs, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the outputs of statements, one after another."""
    every = tuple(s for unit in programs.units for s in unit.statements)
    given = {**inputs, **programs.graph.constants}
    program = Program(programs.types, tuple(given), programs.graph.outputs, every, programs.tables)
    return dict(evaluate(program, given))


def largest_stored(programs: Programs) -> int:
    """Return the size of the largest tensor stored between units.

    Recomputed tensors do not count.
    """
    left = (t for u in programs.units if not u.name.endswith(("tiles", "tiles_")) for t in u.writes)
    return max(programs.types[t].size for t in left if t not in programs.graph.outputs)


@pytest.mark.parametrize("way", ["once", "each"])
@pytest.mark.parametrize("name", CASES)
def test_what_it_means_stays(name: str, way: RecomputeChoice) -> None:
    graph, registry = gradient(name)
    before = prepare_programs(graph, registry)
    after = recompute_contractions(before, lambda family: way)
    assert after is not before
    verify_programs(after)
    verify_programs(defer_normalisation(after))
    rng = np.random.default_rng(0)
    inputs = {t: rng.standard_normal(graph.types[t].shape) for t in graph.inputs}
    if "mask" in inputs and graph.types["mask"].dtype is DType.BOOL:
        inputs["mask"] = rng.random(graph.types["mask"].shape) < 0.7
    expected = evaluate_graph(graph, registry, inputs)
    for programs in (after, defer_normalisation(after)):
        for tensor, value in values(programs, inputs).items():
            np.testing.assert_allclose(value, expected[tensor], rtol=1e-9, atol=1e-9, err_msg=tensor)


@pytest.mark.parametrize("way", ["once", "each"])
def test_joint_readers_follow_all_their_operands(way: RecomputeChoice) -> None:
    """The operand of the second product is computed after the first product."""
    made = graph(
        {"q": (96, 4), "k": (4, 96), "u": (96, 4), "r": (96, 4)},
        *(op("s", "matmul", "q", "k"), op("w", "exp", "s"), op("t", "transpose", "w", perm=(1, 0))),
        *(op("a", "matmul", "t", "u"), op("e", "relu", "r"), op("b", "matmul", "t", "e"), op("y", "add", "a", "b")),
        out="y",
    )
    before = prepare_programs(made, Registry.builtin())
    after = recompute_contractions(before, lambda family: way)
    assert after is not before
    verify_programs(after)
    rng = np.random.default_rng(0)
    inputs = {t: rng.standard_normal(made.types[t].shape) for t in made.inputs}
    expected = evaluate_graph(made, Registry.builtin(), inputs)
    np.testing.assert_allclose(values(after, inputs)["y"], expected["y"], rtol=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_each_side_has_products_of_its_own(name: str) -> None:
    graph, registry = gradient(name)
    (b, h, _, m, n, e), *_ = CASES[name]
    after = defer_normalisation(recompute_contractions(prepare_programs(graph, registry)))
    again = [u for u in after.units if u.name.endswith(("tiles", "tiles_"))]
    assert [sum(s.combine == "sum" for s in u.statements) for u in again] == [2, 2]
    rows = [u for u in after.units if "weights" in u.name]
    assert len(rows) == 1  # of one softmax, which leaves its greatest scores and their sums
    assert largest_stored(after) in {
        b * h * m * n,
        b * h * m * e,
    }  # scores within the chain, which pass through no memory


def test_all_sides_may_share_what_is_computed_again() -> None:
    graph, registry = gradient("after the forward pass")
    after = recompute_contractions(prepare_programs(graph, registry), lambda family: "once")
    again = [u for u in after.units if u.name.endswith("tiles")]
    assert [sum(s.combine == "sum" for s in u.statements) for u in again] == [2]
    assert [len(u.writes) for u in again] == [2]  # the weights, and the gradients of scores


def test_all_stays_where_scores_are_stored_anyway() -> None:
    graph, registry = gradient("alone")
    programs = prepare_programs(graph, registry)
    scores = next(s.target for u in programs.units for s in u.statements if s.target.endswith("d_z"))
    kept = evolve(programs, graph=evolve(graph, outputs=(*graph.outputs, scores)))
    assert recompute_contractions(kept) is kept
    assert recompute_contractions(programs, lambda family: "keep") is programs


def test_readers_that_were_recomputed_stay() -> None:
    graph, registry = gradient("alone")
    programs = prepare_programs(graph, registry)
    families: list[Family] = []
    after = recompute_contractions(programs, lambda family: families.append(family) or "each")
    assert after is not programs
    assert contraction_recompute._recompute(after, families[0], True) is after


def test_connected_readers_are_recomputed_once() -> None:
    uses = [use for use in DIFFERENTIABLE if use.op == "grid_sample"]
    made = bench_of(uses, backward=True)
    programs = prepare_programs(made.graph, made.spec.registry)
    after = recompute_contractions(programs)
    assert after is not programs
    verify_programs(after)


def test_results_are_written_in_the_order_of_statements() -> None:
    graph, registry = gradient("alone")
    for unit in recompute_contractions(prepare_programs(graph, registry)).units:
        targets = list(dict.fromkeys(s.target for s in unit.statements))
        assert list(unit.writes) == [t for t in targets if t in unit.writes]


def test_terms_of_an_exchanged_sum_are_the_same() -> None:
    graph, registry = gradient("alone")
    every = [s for u in prepare_programs(graph, registry).units for s in u.statements]

    def write_statement(end: str) -> Statement:
        return next(s for s in every if s.target.endswith(end))

    found = interchange_sums(write_statement("d_t_sum"), write_statement("d_w"), "weighted")
    assert found is not None
    assert found.weighted.tensors_read == (write_statement("grad.w").target, "v")
    assert found.total.tensors_read == ("dy", "weighted")
    assert interchange_sums(write_statement("t_"), write_statement("d_w"), "weighted") is None
