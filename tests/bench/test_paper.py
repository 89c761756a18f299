"""Tables of the documents: registry, files of rows, command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cuts.bench.paper import PaperTable, TableRequest, documents, read_table, registry, row_of, tables_of
from cuts.bench.paper.registry import find_table, make_rows
from cuts.bench.tools.records import FIELDS, Row, write_rows
from cuts.ir import UsageError

TABLES = [(document, table) for document in documents() for table in tables_of(document).values()]


@pytest.mark.parametrize(("document", "table"), TABLES, ids=lambda value: getattr(value, "number", value))
def test_rows_of_a_table_are_stamped(document: str, table: PaperTable) -> None:
    rows = read_table(document, table)
    assert table.make is not None or table.command
    for row in rows:
        assert set(FIELDS) <= set(row)
        assert row["commit"], row["name"]
        assert row["date"], row["name"]
    if table.make is not None:
        assert [row["name"] for row in rows if row["name"] not in table.names()] == []
        assert all(row["sources"] for row in rows)
    assert not rows or "|" in table.text(rows)


def test_unknown_tables_are_named() -> None:
    with pytest.raises(UsageError, match="unknown document 'deepcut'"):
        tables_of("deepcut")
    with pytest.raises(UsageError, match="has no table '99'"):
        find_table("deepcuts", "99")


def test_a_call_makes_the_missing_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "RESULTS", tmp_path)

    def make(request: TableRequest) -> Iterator[Row]:
        yield from (row_of("1", name, "", {"value": 2}, "abc") for name in request.names)

    table = PaperTable("1", "a title", lambda rows: "|", names=lambda: ("a", "b", "c"), make=make)
    stale = row_of("1", "b", "", {"value": 1}, "abc") | {"stale": True}
    write_rows(table.path("deepcuts"), [row_of("1", "c", "", {"value": 1}, "abc"), stale])
    assert [row["name"] for row in make_rows("deepcuts", table, TableRequest())] == ["a", "b"]
    assert [(row["name"], row["value"]) for row in read_table("deepcuts", table)] == [("a", 2), ("b", 2), ("c", 1)]
    with pytest.raises(UsageError, match="has no row 'd'"):
        [*make_rows("deepcuts", table, TableRequest(names=("d",)))]
