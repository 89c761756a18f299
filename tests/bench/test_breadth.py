"""Import, correctness and compilation of the suite of many operations.

Every operation is right on PoCL at a small size, and has kernels for an H200 at the measured sizes. A failure is a row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.operators import breadth, suite_run
from cuts.bench.operators.tuning import bind, fill, tune, tune_separately
from cuts.bench.tools.breadth_tables import families
from cuts.bench.vocabulary.gradients import GradientOperation
from cuts.bench.vocabulary.operation import Given, SizedOperation, UserOperation, w, x
from cuts.bench.vocabulary.reading import Ready, graph_of, read, ready
from cuts.bench.vocabulary.tables import GRADIENT_ROWS, GRADIENTS, OPERATIONS, ROUTINES, ROWS
from cuts.compile.build import build
from cuts.ir.errors import PassError
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import needs_opencl

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
#: A commit sees every tenth operation or row, another part of them for each kind of test; a night sees all.
SAMPLE_ONLY = not NIGHTLY
FACTS = {"device": "a GPU", "versions": {}, "date": "2026-11-22", "commit": "abc"}


def some(every: int, first: int, things: Sequence[Any]) -> Sequence[Any]:
    return things[first::every] if SAMPLE_ONLY else things


#: Routines with an oracle here: PyTorch only compiles gradients of its `scan`, and some sizes follow from elements.
OPEN = ("distinct integers", "places that are not 0")
ORACLES = [o for o in ROUTINES if o.name not in OPEN and (o.plain or not isinstance(o, GradientOperation))]


def measured_row(number: int, **more: Any) -> dict[str, Any]:
    row = ROWS[number]
    known = {"suite": "breadth", "class": row.operation.family, "name": row.name, "batch": 1, "precision": "fp32"}
    return {**known, "peers": {"torch": 2.0, "compile": 1.0}, "bound_ms": 0.5, **FACTS, **more}


def test_many_operations_have_two_sizes_and_unique_names() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names)) >= 80
    assert len({row.name for row in ROWS}) == len(ROWS) == 2 * len(OPERATIONS)


@needs_opencl
@pytest.mark.parametrize(
    "operation", [*some(10, 3, OPERATIONS), *some(6, 2, GRADIENTS), *some(9, 2, ORACLES)], ids=lambda o: o.name
)
def test_an_operation_computes_what_pytorch_does(operation: UserOperation, tmp_path: Path) -> None:
    row = operation.at(operation.tiny)
    arrays = [given.values(n) for n, given in enumerate(row.given)]
    graph, sources = read(row)
    files = [tmp_path / source.name for source in sources]
    for file, source in zip(files, sources, strict=True):
        file.write_text(source.text)
    plan = build(graph, target="opencl", spec=files)
    exact = operation.call(*(torch.from_numpy(a if a.dtype == np.int64 else a.astype(np.float64)) for a in arrays))
    results = exact if isinstance(exact, (tuple, list)) else (exact,)
    wide = [each.float() if each.dtype is torch.bfloat16 else each for each in results]
    oracle = {name: each.numpy() for name, each in zip(graph.outputs, wide, strict=True)}
    found = plan.verify(dict(zip(graph.inputs, arrays, strict=True)), oracle)
    assert all(each.ok for each in found), "\n".join(each.text for each in found)


@pytest.mark.parametrize("row", [*some(23, 11, ROWS), *some(8, 4, GRADIENT_ROWS)], ids=lambda r: r.name)
def test_a_row_has_kernels_for_the_gpu(row: SizedOperation) -> None:
    case = row.case(*read(row))
    (tune_names,) = tune([case], find_target("cuda:h200"), emit, None)
    assert tune_names.kernels
    assert tune_names.bound > 0
    assert set(case.outputs) == {o for o in case.outputs if tune_names.name(o) in tune_names.graph.types}


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        (Given((3000,), "unit"), 0.0, 1.0),
        (Given((3000,), "positive"), 0.5, 9.0),
        (Given((3000,), "integer", limit=7), 0, 6),
    ],
)
def test_what_is_given_lies_in_its_range(given: Given, least: float, most: float) -> None:
    values = given.values(0)
    assert values.shape == given.shape
    assert values.dtype == given.type.dtype.numpy
    assert least <= values.min()
    assert values.max() <= most
    np.testing.assert_array_equal(values, given.values(0))


@needs_opencl
def test_constants_of_views_reach_the_device() -> None:
    """The places that a reduction clears are a view of one number."""
    operation = next(o for o in ROUTINES if o.name == "largest of rows")
    row, target = operation.at(operation.tiny), find_target("opencl")
    device, case = open_device(target), row.case(*read(row))
    (tuned,) = tune([case], target, emit, None)
    memory = fill(tuned, device)
    bind(tuned, device, [memory])[0]()
    device.synchronize()
    name = tuned.name(case.outputs[0])
    found = np.empty(tuned.graph.types[name].shape, np.float32)
    device.download(found, memory.place(name))
    exact = operation.call(*(torch.from_numpy(given.values(n)) for n, given in enumerate(row.given)))
    np.testing.assert_array_equal(found, exact.numpy())


def test_a_compiled_function_finds_its_names() -> None:
    (row,) = [row for row in GRADIENT_ROWS if row.name.startswith("gradient of gelu, 2048")]
    given = [torch.ones(each.shape) for each in row.operation.at((5, 33)).given]
    found = torch.compile(row.operation.call, backend="eager", dynamic=False)(*given)
    torch.testing.assert_close(found, row.operation.call(*given))


def test_distinct_numbers_have_one_order() -> None:
    values = Given((64, 500), "distinct").values(3)
    assert len(np.unique(values)) == values.size
    assert (np.diff(values, axis=1) < 0).any()


def test_an_unreadable_operation_fails_with_its_reason() -> None:
    odd = UserOperation("odd", "odd", lambda n: (x(n),), lambda a: torch.bincount(a.long()), (3,), ((3,), (4,)))
    found = ready(odd.at((3,)))
    assert found.graph is None
    assert "bincount" in found.failure


def test_rows_are_continued_and_slow_ones_measured_again() -> None:
    every = breadth.select(breadth.arguments([]), [])
    assert every == list(ROWS)
    rows = [measured_row(0, cuts_ms=0.5), measured_row(1, cuts_ms=2.0), measured_row(2, cuts_ms=None, failure="no")]
    assert breadth.select(breadth.arguments([]), rows) == every[3:]
    assert breadth.select(breadth.arguments(["--below", "0.8"]), rows) == every[1:]
    assert len(breadth.select(breadth.arguments(["--only", "attention/"]), rows)) == 12
    assert breadth.select(breadth.arguments(["--share", "1/3"]), rows) == every[4::3]
    with pytest.raises(SystemExit):
        breadth.arguments(["--share", "3/3"])


def test_the_table_counts_failures_and_wrong_results() -> None:
    rows = [
        measured_row(0, cuts_ms=0.5), measured_row(1, cuts_ms=0.8), measured_row(2, cuts_ms=2.0),
        measured_row(3, cuts_ms=None, failure="too large"), measured_row(4, cuts_ms=0.1, wrong="differs"),
    ]  # fmt: skip
    lines = breadth.summary(rows).splitlines()
    assert "failed: too large" in lines[0]
    assert "WRONG: differs" in lines[1]
    assert "0.50x" in lines[2]
    assert lines[-1] == "| all | 5 | 1.08 | 40 % | 0.50 | 2.00 | 2 |"


def test_document_has_the_means_of_families() -> None:
    rows = [{"class": c, "name": n, "batch": 1, "cuts_ms": 1.0, "peers": {"torch": p}}
            for c, n, p in (("norm", "a", 2.0), ("loss", "b", 0.5))]  # fmt: skip
    table = families(rows)
    assert table.splitlines()[2:] == [
        "| norm | 1 | 2.00 | 100 % | 2.00 | 2.00 | 0 |",
        "| loss | 1 | 0.50 | 0 % | 0.50 | 0.50 | 0 |",
        "| all | 2 | 1.00 | 50 % | 0.50 | 2.00 | 0 |",
    ]


@pytest.mark.parametrize("error", [PassError("no kernel"), AssertionError("no kernel")])
def test_a_failing_case_affects_no_other(error: Exception, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def operation(name: str) -> UserOperation:
        return UserOperation("odd", name, lambda n: (x(n), w(n)), lambda a, b: a + b, (3,), ((3,), (4,)))

    rows = [operation(name).at((3,)) for name in ("a", "bad", "c", "d", "e")]

    def tune_names(cases: Sequence[Any], *rest: Any) -> list[str]:
        if any(case.name.startswith("bad") for case in cases):
            raise error
        return [case.name for case in cases]

    @contextmanager
    def session(*given: Any, **options: Any) -> Iterator[None]:
        yield None

    monkeypatch.setattr(suite_run, "tune", tune_names)
    monkeypatch.setattr(suite_run, "tuning_session", session)
    options = breadth.arguments(["--out", str(tmp_path / "rows.json")])
    suite: Any = breadth.Breadth(options, None, None, None, [], FACTS)  # type: ignore[arg-type]
    found = tune_separately([row.case(graph_of(row)) for row in rows], suite.tune)
    assert found == ["a, 3", "no kernel", "c, 3", "d, 3", "e, 3"]
    assert tune_separately([], suite.tune) == []  # of a part whose graphs could not be read
    suite.keep(suite._measure_row(rows[1], rows[1].case(graph_of(rows[1])), found[1], Ready(None)))
    (row,) = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert (row["cuts_ms"], row["failure"]) == (None, "no kernel")
