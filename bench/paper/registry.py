"""Registry of the documents' tables: rows, file and text of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

from attrs import frozen
from cuts.bench.tools.records import RESULTS, Row, as_row, circumstances, is_stale, keep_row, read_rows
from cuts.ir import UsageError

#: The four documents, each a module of this package.
DOCUMENTS = ("deepcuts", "woodpecker", "bigcuts", "latency")
#: Suite of all rows of the package.
SUITE = "paper"


@frozen
class TableRequest:
    """Options of a call.

    They are the names of the rows to make, and the seconds until no further row begins.
    """

    names: tuple[str, ...] = ()
    limit: float = inf
    commit: str = ""


@frozen
class PaperTable:
    """A table or figure of a document.

    `number` is the document's ("11", "figure-5") or a word for a claim of its text; `also` are those of figures with
    the same rows. `names` returns the rows' names in
    order; `make` yields the rows that a request names, as the fields that `row_of` completes. `text` returns the rows
    as Markdown. A table without `make` shows the rows of another measurement:
    `file` within `bench/results`, those that it `shows`, and `command`, which makes them.
    """

    number: str
    title: str
    text: Callable[[Sequence[Row]], str]
    names: Callable[[], Sequence[str]] = tuple
    make: Callable[[TableRequest], Iterator[Row]] | None = None
    file: str = ""
    command: str = ""
    shows: Callable[[Row], bool] = lambda _: True
    also: tuple[str, ...] = ()

    def path(self, document: str) -> Path:
        """Return the file of the rows."""
        return RESULTS / (self.file or f"paper/{document}-{self.number}.json")


@cache
def tables_of(document: str) -> Mapping[str, PaperTable]:
    """Return the tables of a document by number.

    Raises `UsageError` where no module has that name.
    """
    if document not in DOCUMENTS:
        raise UsageError(f"unknown document '{document}'", hint=f"documents are: {', '.join(DOCUMENTS)}")
    module = import_module(f"{__package__}.{document}")
    return {table.number: table for table in module.TABLES}


def find_table(document: str, number: str) -> PaperTable:
    """Return a table of a document.

    Raises `UsageError` where the document has none of that number.
    """
    tables = tables_of(document)
    for table in tables.values():
        if number in (table.number, *table.also):
            return table
    raise UsageError(f"'{document}' has no table '{number}'", hint=f"tables are: {', '.join(tables)}")


def row_of(number: str, name: str, device: str, fields: Mapping[str, Any], commit: str = "") -> Row:
    """Return a stamped row in the common schema.

    It has the commit and the digest of the kernel sources. `device` is the machine of the row's times,
    empty for a row without times.
    """
    return as_row({"suite": SUITE, "class": number, "name": name, **circumstances(device, commit), **fields})


def stamp_rows(number: str, request: TableRequest, found: Iterable[tuple[str, Mapping[str, Any]]]) -> Iterator[Row]:
    """Yield the rows that a request names, stamped."""
    for name, fields in found:
        if not request.names or name in request.names:
            yield row_of(number, name, "", fields, request.commit)


def read_table(document: str, table: PaperTable) -> list[Row]:
    """Return a table's current rows in the order of its names.

    Rows that are older than their kernels are left out.
    """
    rows = [row for row in read_rows(table.path(document)) if not is_stale(row) and table.shows(row)]
    places = {name: place for place, name in enumerate(table.names())}
    return sorted(rows, key=lambda row: places.get(row["name"], len(places)))


def make_rows(document: str, table: PaperTable, request: TableRequest, again: bool = False) -> Iterator[Row]:
    """Yield the missing rows; each is added to the file at once.

    Raises `UsageError` where the request names a row that the table does not have.
    """
    known = table.names()
    if unknown := [name for name in request.names if name not in known]:
        raise UsageError(f"table '{table.number}' has no row '{unknown[0]}'", hint=f"rows are: {', '.join(known)}")
    have = set() if again else {row["name"] for row in read_table(document, table)}
    wanted = tuple(name for name in request.names or known if name not in have)
    if table.make is None or not wanted:
        return
    for row in table.make(TableRequest(wanted, request.limit, request.commit)):
        keep_row(table.path(document), row)
        yield row
