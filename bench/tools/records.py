"""Rows of results: schema, incremental files, tables against the targets."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

import cuts
from attrs import frozen
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
#: Former names of fields.
_RENAMED_FIELDS = {"gpu": "device", "budget": "budget_s"}
#: Folders of the sources that make kernels.
_KERNEL_SOURCES = ("ir", "passes", "backends")
#: Packages whose versions identify results.
_PACKAGES = (
    "torch", "nvidia-cudnn-cu13", "nvidia-cudnn-frontend", "nvidia-cublas", "nvidia-cuda-nvrtc", "pycuda",
    "cuda-bindings",
)  # fmt: skip


@frozen
class Goal:
    """Line of the table: its rows, figure, threshold and aim."""

    title: str
    kind: str
    figure: str
    least: float
    aim: float
    batch: int | None = None
    large: bool = False
    precision: str = "fp32"

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row belongs to it."""
        right = row["class"] == self.kind and self.batch in (None, row["batch"])
        right = right and row.get("precision", "fp32") == self.precision
        return right and (not self.large or is_large(row))


def is_large(row: Mapping[str, Any]) -> bool:
    """Return whether a product or tensor is large.

    A product is at least 2048 cubed, a tensor of another operation at least 64 MB.
    """
    if row["class"] == "gemm":
        return bool(row["flops"] >= 2 * 2048**3)
    return bool(row["bytes"] >= 64 << 20)


#: The targets: speed is the best peer's time over ours, share the attained part of the bandwidth of a copy of 1 GB,
#: copied that of a copy of as many bytes as the operation moves, timed next to it.
GOALS = (
    Goal("GEMM >= 2048^3", "gemm", "speed", 0.95, 1.10, large=True),
    Goal("GEMM of the list", "gemm", "speed", 1.0, 1.15),
    Goal("convolutions b64", "conv", "speed", 1.0, 1.3, 64),
    Goal("convolutions b16", "conv", "speed", 1.25, 1.6, 16),
    Goal("convolutions b1", "conv", "speed", 2.2, 3.5, 1),
    Goal("data gradients b64", "dgrad", "speed", 1.0, 1.3, 64),
    Goal("data gradients b16", "dgrad", "speed", 1.1, 1.5, 16),
    Goal("filter gradients b64", "wgrad", "speed", 1.0, 1.3, 64),
    Goal("filter gradients b16", "wgrad", "speed", 1.1, 1.5, 16),
    Goal("depthwise", "depthwise", "speed", 1.3, 2.0),
    Goal("memory-bound >= 64 MB", "memory", "share", 0.88, 0.95, large=True),
    Goal("memory-bound, all sizes", "memory", "speed", 1.0, 1.2),
    Goal("GEMV, dense b1-8", "gemv", "copied", 0.80, 0.93),
    Goal("GEMV, share of a 1 GB copy", "gemv", "share", 0.80, 0.93),
    Goal("GEMV against cuBLAS", "gemv", "speed", 1.0, 1.2),
    Goal("GEMM of the list, fp16", "gemm", "speed", 0.9, 1.15, precision="fp16"),
    Goal("convolutions b64, fp16", "conv", "speed", 0.8, 1.0, 64, precision="fp16"),
    Goal("convolutions b16, fp16", "conv", "speed", 1.0, 1.3, 16, precision="fp16"),
    Goal("convolutions b1, fp16", "conv", "speed", 1.8, 3.0, 1, precision="fp16"),
)


def figure(row: Mapping[str, Any], name: str) -> float | None:
    """Return a figure of a row; nothing where it was not measured."""
    if row.get("cuts_ms") is None:
        return None
    if name == "share":
        return (
            float(row["bytes"]) / (float(row["cuts_ms"]) * 1e-3) / float(row["copy_bandwidth"])
            if row.get("copy_bandwidth")
            else None
        )
    if name == "copied":
        return float(row["copy_ms"]) / float(row["cuts_ms"]) if row.get("copy_ms") else figure(row, "share")
    if name == "bound":
        return float(row["bound_ms"]) / float(row["cuts_ms"])
    best = min((float(t) for t in row["peers"].values() if t is not None), default=None)
    return None if best is None else best / float(row["cuts_ms"])


def geomean(values: Iterable[float]) -> float:
    """Return the geometric mean."""
    logs = [log(v) for v in values]
    return exp(sum(logs) / len(logs))


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of all goals that have rows.

    It has geometric means, the best and the worst row, and the bound over the time.
    """
    lines = [f"{'class':<24}{'rows':>5}{'figure':>8}{'mean':>8}{'least':>8}{'aim':>7}  {'bound':>6}  best, worst"]
    for goal in GOALS:
        found = [(value, row) for row in rows if goal.takes(row) and (value := figure(row, goal.figure)) is not None]
        if not found:
            continue
        mean = geomean(value for value, _ in found)
        worst, best = min(found, key=lambda pair: pair[0]), max(found, key=lambda pair: pair[0])
        mark = "+" if mean >= goal.aim else " " if mean >= goal.least else "!"
        bounds = median(value for _, row in found if (value := figure(row, "bound")) is not None)
        lines.append(
            f"{goal.title:<24}{len(found):>5}{goal.figure:>8}{mean:>7.3f}{mark}{goal.least:>8.2f}{goal.aim:>7.2f}  "
            f"{bounds:>6.2f}  "
            f"{best[1]['name']} b{best[1]['batch']} {best[0]:.2f}, {worst[1]['name']} b{worst[1]['batch']} "
            f"{worst[0]:.2f}"
        )
    missing = [row for row in rows if row.get("cuts_ms") is None or row.get("wrong")]
    lines += [f"no result: {row['name']} b{row['batch']}: {row.get('failure') or row.get('wrong')}" for row in missing]
    return "\n".join(lines)


#: Bytes that an operation moves from which on a launch does not count.
_LARGE_BYTES = 64e6


def row_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of text."""
    peers = "  ".join(f"{name} {time:.4f}" for name, time in row["peers"].items() if time is not None)
    head = f"{row['class']:<10}{row['name']:<34}b{row['batch']:<5}"
    if row.get("cuts_ms") is None:
        return f"{head}failed: {row.get('failure')}"
    return f"{head}cuts {row['cuts_ms']:>9.4f}  {peers}  bound {row['bound_ms']:.4f}"


# ---- files


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of a suite's storage and multiplication precision."""
    parser.add_argument(
        "--precision",
        choices=tuple(PRECISIONS),
        default="fp32",
        help="how all contenders store and multiply; tf32 and fp32x3 change products only, so that these are what is "
        "measured unless --class says otherwise",
    )


def add_every_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that takes a sample of a suite."""
    parser.add_argument(
        "--every", type=int, default=1, metavar="N", help="only the first of every N rows of a class and batch size"
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
    parser.add_argument(
        "--limit", type=float, default=540.0, metavar="SECONDS", help="end after this; what is finished is kept"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS / name, help="the file of rows; what it has is not measured again"
    )
    parser.add_argument("--again", action="store_true", help="measure what the file has, too")
    parser.add_argument("--target", default="cuda:device")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--table", action="store_true", help="only print the table of the file")


def read_rows(path: Path) -> list[Row]:
    """Return a file's rows in the schema; none without a file."""
    if not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return [as_row(row) for row in (found["rows"] if isinstance(found, dict) else found)]


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows in the schema, a line each, replacing the file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".part")
    text = ",\n".join(json.dumps(as_row(row)) for row in rows)
    draft.write_text(f'{{"rows": [\n{text}\n]}}\n', encoding="utf-8")
    os.replace(draft, path)


def as_row(record: Mapping[str, Any]) -> Row:
    """Return a suite's record with every schema field and its own."""
    named = {_RENAMED_FIELDS.get(name, name): value for name, value in record.items()}
    return {**FIELDS, **_timing(named), **named}


def _timing(r: Mapping[str, Any]) -> Row:
    """Return suite, name and times of a record whose suite names them in its own way."""
    if "system" in r:
        ours = r["system"].startswith("cuts")
        found = {"suite": "evaluation", "class": r["task"], "name": r["model"]}
        return found | {"cuts_ms": r.get("ms") if ours else None, "peers": {} if ours else {r["system"]: r.get("ms")}}
    if "way" in r and "network" in r:
        ours = r["way"] in ("cuts", "frozen")
        found = {"suite": "door", "class": r["way"], "name": r["network"]}
        return found | {"cuts_ms": r["wall"] if ours else None, "peers": {} if ours else {r["way"]: r["wall"]}}
    if "ours" in r:
        peers = {r["peer_name"]: r["peer"]} if r["peer_name"] else {}
        return {"suite": "networks", "class": "network", "name": r["network"], "cuts_ms": r["ours"], "peers": peers}
    if "product" in r:
        ours, ms = r["point"] != "torch", r["us"] * 1e-3
        found = {"suite": "products", "class": "gemm", "name": r["product"], "precision": r["format"]}
        return found | {"cuts_ms": ms if ours else None, "peers": {} if ours else {"torch": ms}}
    return {"cuts_ms": r["chosen_us"] * 1e-3} if "chosen_us" in r else {}


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


def merge_row(rows: Sequence[Row], row: Row) -> list[Row]:
    """Return rows with one more, which replaces one of the same case."""
    return [*(r for r in rows if (r["suite"], key_of(r)) != (row["suite"], key_of(row))), row]


def circumstances(gpu: str, commit: str = "") -> dict[str, Any]:
    """Return every row's record of the measurement's circumstances."""
    return {
        "device": gpu,
        "versions": versions(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or _commit(),
        "sources": kernel_sources(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the installed relevant packages."""
    return {"cuts": cuts.__version__} | versions_of(_PACKAGES)


def _commit() -> str:
    try:
        command = ["git", "describe", "--always", "--dirty"]  # a modified tree is none of its rows
        return subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


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
