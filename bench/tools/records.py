"""Rows of results: schema, incremental files, marks of stale rows."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import cuts
from cuts.ir.errors import CutsError
from cuts.ir.machine import PRECISIONS
from cuts.runtime.versions import versions_of
from cuts.store import compiler_digest

_CHECKOUT_RESULTS = Path(__file__).parents[1] / "results"
#: Folder of the rows: that of a checkout; a folder below the current one where the package has none.
RESULTS = _CHECKOUT_RESULTS if _CHECKOUT_RESULTS.is_dir() else Path("cuts-bench")
Row = dict[str, Any]
#: Fields of every row, with their defaults. `peers` are milliseconds by name, `error` is the relative error of the
#: result, `budget_s` the seconds of the search. A suite may add fields of its own.
FIELDS: Mapping[str, Any] = {
    "suite": "", "class": "", "name": "", "batch": 1, "precision": "fp32", "cuts_ms": None, "peers": {}, "error": None,
    "budget_s": None, "device": "", "versions": {}, "date": "", "commit": "",
}  # fmt: skip
#: Folders of the sources that make kernels.
_KERNEL_SOURCES = ("ir", "passes", "backends")
#: Packages whose versions identify results.
_PACKAGES = (
    "torch", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "nvidia-cublas", "nvidia-cuda-nvrtc", "pycuda",
    "cuda-bindings",
)  # fmt: skip


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a suite's storage and multiplication precision."""
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        default="fp32",
        help="how all contenders store and multiply; tf32 and fp32x3 change products only, so that these are what is "
        "measured unless --class says otherwise",
    )


def parse_share(text: str) -> tuple[int, int]:
    """Read a share such as 0/2; argparse reports others."""
    turn, turns = map(int, text.split("/"))
    if not 0 <= turn < turns:
        raise ValueError(f"expected K/N with K from 0 to N - 1, found {text}")
    return turn, turns


def add_row_options(parser: argparse.ArgumentParser, name: str) -> None:
    """Add a suite's options: device, time limit, file, and output.

    The suite's rows grow over several calls.
    """
    add = parser.add_argument
    add("--limit", type=float, default=540.0, metavar="SECONDS", help="end after this; what is finished is kept")
    add("--out", type=Path, default=RESULTS / name, help="the file of rows; what it has is not measured again")
    add("--again", action="store_true", help="measure what the file has, too")
    add("--target", default="cuda:device")
    add("--commit", default="", help="what rows say of the version, where there is no git")
    add("--table", action="store_true", help="only print the table of the file")


def read_rows(path: Path) -> list[Row]:
    """Return a file's rows in the schema; none without a file."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [as_row(row) for row in (found["rows"] if isinstance(found, dict) else found)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in the schema, a compact line each, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    text = ",\n".join(json.dumps(as_row(row), separators=(",", ":")) for row in rows)
    draft.write_text(f'{{"rows": [\n{text}\n]}}\n', encoding="utf-8")
    os.replace(draft, path)


def as_row(record: Mapping[str, Any]) -> Row:
    """Return a suite's record with every schema field and its own."""
    return {**FIELDS, **record}


def kernel_sources() -> str:
    """Return a digest of the sources that make kernels."""
    return compiler_digest(*_KERNEL_SOURCES)[:16]


def is_stale(row: Mapping[str, Any]) -> bool:
    """Return whether a row is older than its kernels.

    Tables omit such a row.
    """
    return bool(row.get("stale"))


def mark_stale(rows: Sequence[Row]) -> list[Row]:
    """Return rows, with those of other kernel sources marked stale."""
    present = kernel_sources()
    return [
        {**row, "stale": True} if row["cuts_ms"] is not None and row.get("sources") != present else row for row in rows
    ]


def key_of(row: Mapping[str, Any]) -> str:
    """Return a row's identity in its suite: that of its case."""
    precision = row.get("precision", "fp32")
    known = f"{row['class']}/{row['name']}/b{row['batch']}{'' if precision == 'fp32' else f'/{precision}'}"
    return f"{known}/{row['layout']}" if row.get("layout") else known


def fresh_keys(rows: Sequence[Row]) -> set[str]:
    """Return the identities of measured rows of the present kernels."""
    return {key_of(row) for row in rows if not is_stale(row)}


def merge_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """Return rows with one more, which replaces one of the same case."""
    return [*(r for r in rows if (r["suite"], key_of(r)) != (row["suite"], key_of(row))), row]


def keep_row(path: Path, row: Row) -> list[Row]:
    """Add a row to a file and return all of its rows."""
    rows = merge_row(read_rows(path), as_row(row))
    write_rows(path, rows)
    return rows


def circumstances(gpu: str, commit: str = "") -> dict[str, Any]:
    """Return every row's record of the measurement's circumstances."""
    return {
        "device": gpu,
        "versions": {"cuts": cuts.__version__} | versions_of(_PACKAGES),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or _commit(),
        "sources": kernel_sources(),
    }


def _commit() -> str:
    """Return the commit of the tree; `-dirty` where more than rows and documents of rows differs."""
    try:
        commit = _git("describe", "--always")
        return commit + "-dirty" * bool(_git("diff", "--name-only", "HEAD", "--", ":/", ":!/bench/results", ":!/docs"))
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(*words: str) -> str:
    command, folder = ("git", *words), Path(__file__).parent
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder).stdout.strip()


def exit_code(main: Callable[[], int | None]) -> int:
    """Run a script's main function; an error of ours is one line.

    A machine without a GPU is such an error.
    """
    try:
        return main() or 0
    except CutsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def main() -> int:
    """Mark stale rows of files."""
    parser = argparse.ArgumentParser(description="marks rows that are older than the kernels they describe as stale")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for path in parser.parse_args().files:
        rows = mark_stale(read_rows(path))
        write_rows(path, rows)
        print(f"{path}: {sum(map(is_stale, rows))} of {len(rows)} rows are stale")
    return 0
