"""The zoo: a sample by day, all architectures by night."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cuts.docs import make_zoo
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import needs_opencl
from cuts.tests.zoo.checking import faults_of, results_in_float64, run_forward
from cuts.tests.zoo.observation import Observation
from cuts.tests.zoo.records import TASKS, is_right, is_whole, read_records, summary, write_records
from cuts.tests.zoo.running import missing_library, run_all
from cuts.tests.zoo.table import LIBRARIES, Architecture, read_table, select
from torch.nn.functional import scaled_dot_product_attention

#: Architectures of the table and of its sample.
TABLE_SIZE, SAMPLE_SIZE = 200, 12
LIMIT_SECONDS = 600.0


@needs_opencl
@pytest.mark.long
@pytest.mark.parametrize("architecture", select(sample=not NIGHTLY), ids=lambda each: each.name)
def test_an_architecture_is_whole_and_right(architecture: Architecture) -> None:
    (record,) = run_all([architecture], TASKS, LIMIT_SECONDS, False)
    if "skipped" in record:
        pytest.skip(record["skipped"])
    known = {each["name"]: each for each in read_records(make_zoo.ROWS)}
    for task in TASKS:
        if not architecture.reason and is_whole(known.get(architecture.name, {}).get(task, {"error": "unknown"})):
            assert is_whole(record[task]), summary(record)


def test_captured_attention_is_computed_by_the_reference() -> None:
    """Attention stays whole in a captured graph."""
    q, k, v = (torch.randn(1, 2, 9, 8) for _ in range(3))
    observation = Observation()
    found = torch.compile(scaled_dot_product_attention, backend=observation.capture)(q, k, v)
    assert torch.allclose(found, scaled_dot_product_attention(q, k, v), atol=1e-5)
    assert (observation.graphs, observation.foreign_nodes) == (1, 0)


def test_the_table_has_its_sizes() -> None:
    rows = read_table()
    assert len(rows) == TABLE_SIZE
    assert len(select(sample=True)) == SAMPLE_SIZE
    assert {each.library for each in rows.values()} == set(LIBRARIES)


def test_the_sample_is_whole_in_the_results() -> None:
    known = {each["name"]: each for each in read_records(make_zoo.ROWS)}
    assert [each.name for each in select(sample=True) if not all(is_whole(known[each.name][t]) for t in TASKS)] == []


def test_wrong_results_have_a_reason() -> None:
    table = read_table()
    wrong = {each["name"] for each in read_records(make_zoo.ROWS) if not all(is_right(each[task]) for task in TASKS)}
    assert {name for name in wrong if not table[name].reason} == set()


def test_shards_are_a_partition_of_the_table() -> None:
    shards = [select(shard=(number, 7)) for number in range(1, 8)]
    assert sorted(each.name for shard in shards for each in shard) == sorted(read_table())


def test_the_page_is_made_from_the_results() -> None:
    assert make_zoo.DOCUMENT.read_text("utf-8") == make_zoo.document(), "run python docs/make_zoo.py"


def test_later_records_replace_earlier_ones(tmp_path: Path) -> None:
    path = tmp_path / "zoo.jsonl"
    names = [*read_table()][:2]
    write_records(path, [{"name": names[1]}, {"name": names[0], "n": 1}, {"name": names[0], "n": 2}])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"name": names[0], "n": 2},
        {"name": names[1]},
    ]


def test_a_missing_library_is_a_reason() -> None:
    assert missing_library("no_such_library") == "no_such_library is not installed"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        (torch.ones(2, 3), ""),
        (torch.ones(2, 3) + 1e-7, ""),
        (torch.ones(3, 2).T, "strides"),
        (torch.ones(2, 3).double(), "float64"),
        (torch.ones(2, 3) + 0.01, "WRONG"),
    ],
)
def test_a_fault_is_a_type_strides_or_numbers(found: Any, fault: str) -> None:
    faults = [*faults_of({"x": found}, {"x": torch.ones(2, 3)}, 10, dict, [])]
    assert len(faults) == bool(fault)
    assert all(fault in each for each in faults)


@pytest.mark.parametrize(
    ("exact", "explained"),
    [
        (1.004, True),
        (1.01, True),
        (1.0, False),
        (1.0001, False),
        (2.0, False),
        (float("nan"), False),
        (float("inf"), False),
    ],
)
def test_eager_errors_explain_some_differences(exact: float, explained: bool) -> None:
    one, sensitive = torch.ones(2, 3), []
    faults = [*faults_of({"x": one + 0.01}, {"x": one}, 10, lambda: {"x": one.double() * exact}, sensitive)]
    assert (len(faults), len(sensitive)) == (not explained, explained)


@pytest.mark.parametrize(("found", "explained"), [(1e-9, True), (1.0, False)])
def test_gradients_that_are_zero_may_have_rounding_errors(found: float, explained: bool) -> None:
    eager = {"x": torch.ones(3), "zero": torch.full((3,), -found)}
    exact = {"x": torch.ones(3).double(), "zero": torch.zeros(3).double()}
    faults = [*faults_of({**eager, "zero": torch.full((3,), found)}, eager, 10, lambda: exact, [])]
    assert bool(faults) != explained


class Angles(torch.nn.Module):  # type: ignore[misc]
    """Sines of large angles, which name float32 in three ways."""

    def forward(self, x: Any) -> Any:
        steps = -torch.arange(8, dtype=torch.float32) / 8
        return torch.stack([torch.sin(x.float() * torch.exp(each)) for each in (steps, steps.to(torch.float32))])


def test_references_in_float64_round_nothing_to_float32() -> None:
    x = torch.full((8,), 7000.0)
    found = results_in_float64(Angles(), {"x": x}, run_forward)["result"]
    exact = torch.sin(x.double() * torch.exp(-torch.arange(8, dtype=torch.float64) / 8)).expand(2, 8)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-10)
    assert (Angles()(x) - exact).abs().max() > 1e-5
