"""Prints one table of a document, and makes its missing rows first.

python -m cuts.bench paper DOCUMENT --table N     # a table or figure
python -m cuts.bench paper --coverage             # all parts of the evaluations: whole, or why not
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path

from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import Row, kernel_sources

from .registry import DOCUMENTS, TableRequest, find_table, make_rows, read_table, tables_of


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m cuts.bench paper", description=__doc__, formatter_class=form)
    parser.add_argument("document", nargs="?", choices=DOCUMENTS, help="without one, list all tables")
    parser.add_argument("--coverage", action="store_true", help="list parts of the evaluations, each with its command")
    parser.add_argument("--table", metavar="N", help="number of a table, figure-N, or the word of a claim")
    parser.add_argument("--figure", dest="table", type="figure-{}".format, metavar="N", help="number of a figure")
    parser.add_argument("--row", action="append", default=[], metavar="NAME", help="only this row; may be repeated")
    parser.add_argument("--print", action="store_true", help="print the rows of the file, and make none")
    parser.add_argument("--again", action="store_true", help="make rows that the file has, too")
    parser.add_argument("--limit", type=float, default=inf, metavar="SECONDS", help="begin no row after that")
    parser.add_argument("--commit", default="", help="version of the rows, where there is no git")
    return parser.parse_args()


def coverage() -> str:
    """Return all parts of the evaluations: whole, or explained by a note."""
    found = tomllib.loads(Path(__file__).with_name("coverage.toml").read_text(encoding="utf-8"))["line"]
    lines = [[*(row[n] for n in ("place", "what", "state")), f"`{row['command']}`", row.get("note")] for row in found]
    return markdown_table(["part", "experiment or claim", "state", "command", "note"], lines)


def list_tables(document: str) -> str:
    """Return the tables of a document, a line each."""
    lines = []
    for number, table in tables_of(document).items():
        lines.append(f"  {', '.join((number, *table.also)):<20} {table.title} ({table.command or 'needs no GPU'})")
    return "\n".join([document, *lines])


def origin_of(rows: Sequence[Row]) -> str:
    """Return the commits of rows, and the kernel sources of our times."""
    own = [row for row in rows if row["device"] and (row["cuts_ms"] is not None or not row["peers"])]
    commits = _counts(row["commit"] for row in rows)
    sources = _counts(row.get("sources") for row in own) or "none"
    return f"Rows by commit: {commits}. Our times by kernel sources (now {kernel_sources()}): {sources}."


def _counts(names: Iterable[str | None]) -> str:
    return ", ".join(f"{name or 'unknown'} {count}" for name, count in Counter(names).most_common())


def main() -> int:
    """Make missing rows of a table and print it."""
    options = parse_arguments()
    if options.coverage:
        print(coverage())
        return 0
    if options.table is None:
        print("\n".join(map(list_tables, [options.document] if options.document else DOCUMENTS)))
        return 0
    table = find_table(options.document, options.table)
    request = TableRequest(tuple(options.row), options.limit, options.commit)
    for row in () if options.print else make_rows(options.document, table, request, options.again):
        print(row["name"], file=sys.stderr, flush=True)
    rows = read_table(options.document, table)
    if rows:
        print(f"{table.text(rows)}\n\n{origin_of(rows)}")
    else:
        print(f"no current rows; {table.command or 'call without --print to make them'}")
    return 0
