"""Ranking, feasibility, sensitivity answers, and errors of bad input."""

from __future__ import annotations

import time

import numpy as np
import pytest
from attrs import evolve
from cuts.cluster.planning.planner import rank
from cuts.cluster.planning.what_if import what_if
from cuts.cluster.plans import Machine, Transformer
from cuts.cluster.plans.files import (
    known_machines,
    known_models,
    load_machine,
    load_transformer,
    machine_text,
    structure,
)
from cuts.cluster.plans.ways import Way, all_ways, columns
from cuts.cluster.prediction.closed_form import corrected_terms
from cuts.cluster.prediction.feasibility import fit
from cuts.cluster.prediction.simulation import simulate
from cuts.ir.errors import CutsError, UsageError

MODEL = Transformer("small", layers=4, hidden=256, heads=4, sequence=128, batch=16)
HOST = Machine("host", 1, 2, 1e12, 0.5, 1e9, 2e9, 1e9, 1e10, 1e10, storage=1e12)

#: Billions of parameters by the papers; 3 % covers biases, norms, and the papers' rounding.
PUBLISHED_SIZES = {
    "gpt3-small": 0.125,
    "gpt3-medium": 0.350,
    "gpt3-large": 0.760,
    "gpt3-xl": 1.3,
    "gpt3-2.7b": 2.7,
    "gpt3-6.7b": 6.7,
    "gpt3-13b": 13.0,
    "gpt3-175b": 175.0,
    "turing-nlg": 17.0,
    "llama-7b": 6.7,
    "llama-13b": 13.0,
    "llama-65b": 65.2,
    "llama2-70b": 69.0,
}


def test_every_described_model_has_its_published_size() -> None:
    assert set(PUBLISHED_SIZES) == set(known_models())
    for name, billions in PUBLISHED_SIZES.items():
        assert load_transformer(name).parameters / 1e9 == pytest.approx(billions, rel=0.03), name


def test_every_described_cluster_loads_and_is_written_back() -> None:
    for name in known_machines():
        machine = load_machine(name)
        import tomllib

        assert structure(tomllib.loads(machine_text(machine, "again")), Machine, name) == machine


def test_plans_of_1024_gpus_are_scored_within_seconds() -> None:
    model, machine = load_transformer("gpt3-175b"), evolve(load_machine("h200-host"), nodes=128)
    begin = time.perf_counter()
    ways = all_ways(machine.count, model.batch, training=True)
    corrected_terms(ways, model, machine)
    fit(ways, model, machine)
    assert len(ways) > 5000
    assert time.perf_counter() - begin < 1.0


def test_scoring_together_is_scoring_one_by_one() -> None:
    ways = all_ways(8, MODEL.batch, training=True)
    together = corrected_terms(ways, MODEL, evolve(HOST, nodes=4)).total
    for row in range(0, len(ways), 37):
        way = ways.way(row)
        if MODEL.layers % way.p == 0:
            assert corrected_terms(columns([way]), MODEL, evolve(HOST, nodes=4)).total[0] == together[row]


def test_ranked_ways_fit_and_come_in_order() -> None:
    found = rank(MODEL, HOST)
    assert [r.seconds for r in found.ranked] == sorted(r.seconds for r in found.ranked)
    assert all(r.memory <= HOST.memory and r.way.gpus == HOST.count for r in found.ranked)
    assert found.feasible + sum(count for _, count, _ in found.rejected if count) >= found.considered


def test_less_memory_is_never_faster() -> None:
    best = [rank(MODEL, evolve(HOST, memory=memory)).ranked[0].seconds for memory in (1e9, 3e8, 1.2e8)]
    assert best == sorted(best)


def test_an_oversized_model_names_the_smallest_sufficient_cluster() -> None:
    with pytest.raises(UsageError, match=r"fits .* in none of") as caught:
        rank(load_transformer("gpt3-175b"), evolve(HOST, memory=24e9, storage=1e12))
    assert "smallest cluster" in caught.value.hint
    nodes = int(caught.value.hint.split(" has ")[1].split()[0])
    larger = evolve(HOST, memory=24e9, storage=1e12, nodes=nodes)
    assert rank(load_transformer("gpt3-175b"), larger).ranked
    with pytest.raises(UsageError):
        rank(load_transformer("gpt3-175b"), evolve(larger, nodes=nodes // 2))


@pytest.mark.parametrize(
    ("only", "words"),
    [
        ({"dp": 3}, "divides the 2 GPUs"),
        ({"p": 2}, "layers"),
        ({"micro": 7}, "micro 7: expected a micro-batch that divides"),
    ],
)
def test_numbers_that_do_not_divide_are_an_error(only: dict[str, int], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        rank(evolve(MODEL, layers=3), HOST, only=only)


def test_an_error_names_a_limiting_fixed_choice() -> None:
    with pytest.raises(UsageError, match="does not divide into 2 groups") as caught:
        rank(evolve(MODEL, batch=7), HOST, only={"dp": 2})
    assert caught.value.hint == "this cluster would do without dp 2"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"storage_read": 0.0}, "storage_read: expected a number above 0"),
        ({"memory": -1.0}, "memory: expected a number above 0"),
        ({"efficiency": 1.5}, "efficiency: expected at most 1"),
        ({"gpu_link": float("inf")}, "gpu_link"),
        ({"nodes": 0}, "nodes"),
    ],
)
def test_impossible_clusters_are_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        evolve(HOST, **change)


def test_all_errors_of_a_description_come_at_once(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "model.toml"
    path.write_text('name = "x"\nlayers = 2.5\nhiden = 64\nheads = 4\nsequence = "long"\n')
    with pytest.raises(CutsError) as caught:
        load_transformer(path)
    text = str(caught.value)
    for words in (
        "'hiden'; did you mean 'hidden'",
        "layers: expected a whole number",
        "sequence: expected a whole",
        "'batch' is missing",
    ):
        assert words in text


@pytest.mark.parametrize("content", ["name = ", "\xff", ""])
def test_what_is_no_description_is_refused(content: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "cluster.toml"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CutsError):
        load_machine(path)
    with pytest.raises(UsageError, match="cannot read"):
        load_machine(tmp_path / "absent.toml")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("policy", ["PR", "AR"])
def test_least_bandwidth_hides_storage_in_the_simulation(policy: str, training: bool) -> None:
    pytest.importorskip("simpy", reason="SimPy is not installed")
    model = evolve(load_transformer("gpt3-small"), batch=64, vocabulary=0)
    machine = Machine("one", 1, 1, 285e12, 0.34, 24e9, 0.4e9, 0.4e9, 16e9, 16e9)
    kinds = {
        "PR": ("nothing", "recompute+offload" if training else "offload"),
        "AR": ("gradients" if training else "nothing", "keep"),
    }
    way = Way(1, 1, 1, policy, 1, *kinds[policy])
    answer = what_if(model, machine, way, training=training)
    assert not answer.hidden

    def passes(factor: float) -> float:
        rates = {"storage_read": answer.read * factor, "storage_write": answer.write * factor}
        return simulate(model, evolve(machine, **rates), way, training=training).passes

    ideal = passes(1e6)
    assert passes(1.0) < 1.05 * ideal
    assert passes(0.5) > 1.2 * ideal


def test_least_micro_batch_hides_storage() -> None:
    machine = Machine("one", 1, 1, 1e14, 0.5, 24e9, 1e9, 1e9, 16e9, 16e9)
    model = evolve(load_transformer("gpt3-small"), batch=4096, vocabulary=0)
    way = Way(1, 1, 1, "AR", 1, "nothing", "keep")
    answer = what_if(model, machine, way, training=False)
    assert answer.micro is not None
    assert what_if(model, machine, evolve(way, micro=answer.micro), training=False).pressure <= 1
    assert what_if(model, machine, evolve(way, micro=answer.micro - 1), training=False).pressure > 1


def test_least_mini_batch_hides_storage() -> None:
    machine = Machine("one", 1, 1, 1e14, 0.5, 24e9, 1e9, 1e9, 16e9, 16e9)
    model = evolve(load_transformer("gpt3-small"), batch=4, vocabulary=0)
    way = Way(1, 1, 1, "PR", 1, "nothing", "keep")
    answer = what_if(model, machine, way, training=False)
    assert answer.batch is not None
    assert answer.batch > 4
    assert what_if(evolve(model, batch=answer.batch), machine, way, training=False).pressure <= 1


def test_feasibility_grows_with_what_stays_in_memory() -> None:
    ways = columns([Way(1, 1, 1, "AR", 1, level) for level in ("nothing", "weights", "state")])
    memory = fit(ways, evolve(MODEL, layers=64), HOST).memory
    assert np.all(np.diff(memory) > 0)
