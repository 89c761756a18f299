"""Converts profile records into a data set of `latency/data/`.

A data set has compressed tables of rounded numbers.

    python -m cuts.latency.profiling.tables h200 DIR...
    python -m cuts.latency.profiling.tables h200 --add DIR...

`--add` keeps the rows of the data set and adds layers to it.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import re
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

from ...ir import UsageError
from ..dataset import read_table
from .profile import finished_rows

DATA = Path(__file__).parents[1] / "data"
LAYERS = (
    "kind",
    "case",
    "op",
    "precision",
    "shape",
    "kernels",
    "blocks",
    "cold_each",
    "warm_each",
    "cold",
    "low",
    "high",
    "warm",
)
NETWORKS = ("network", "batch", "precision", "layer", "target", "attributes", "inputs", "outputs", "kernels", "us")


class Numbers:
    """Small numbers for the names of kernels, in order of first use."""

    def __init__(self, read_layers: Iterable[tuple[int, str]] = ()) -> None:
        self._of: dict[str, int] = {name: number for number, name in read_layers}

    def __getitem__(self, name: str) -> int:
        return self._of.setdefault(name, len(self._of))

    @property
    def rows(self) -> list[tuple[int, str]]:
        """All of them."""
        return [(number, name) for name, number in self._of.items()]


def join_values(values: Iterable[object], by: str = "+") -> str:
    """Return values as one cell."""
    return by.join(map(str, values))


def layer_rows(records: Sequence[dict[str, Any]], numbers: Numbers) -> list[tuple[Any, ...]]:
    """Return a row for each measured task.

    Of a task that was measured twice the last counts.
    """
    names = {record["kernel"]: record["name"] for record in records if "name" in record and "registers" in record}
    measured = {record["task"]: record for record in records if "cold" in record and record["kernels"]}
    return [_layer_row(record, names, numbers) for record in measured.values()]


def collapse_kernels(record: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return (kernel, launch, cold, warm), with equal neighbours summed.

    Neighbours that are the same kernel count as one with the sum of their times.

    Products in the frequency domain are launched once for each frequency; their sum counts.
    """
    each = zip(record["kernels"], record["cold"]["each"], record["warm"]["each"], strict=True)
    found = []
    for _, same in groupby(each, key=lambda one: one[0]):
        run = list(same)
        found.append((run[0][0], len(run), sum(one[1] for one in run), sum(one[2] for one in run)))
    return found


def _layer_row(record: dict[str, Any], names: dict[str, str], numbers: Numbers) -> tuple[Any, ...]:
    kind, case, op, precision, shape = record["task"].split("/")
    kernels = collapse_kernels(record)
    cold, low, high = record["cold"]["us"]
    return (
        kind, case, op, precision, shape,
        join_values(numbers[names[k[0]]] for k, *_ in kernels),
        join_values(prod(k[1:4]) * times for k, times, *_ in kernels),
        join_values(round(us, 2) for _, _, us, _ in kernels),
        join_values(round(us, 2) for *_, us in kernels),
        cold, low, high, record["warm"]["us"][0],
    )  # fmt: skip


def network_rows(records: Sequence[dict[str, Any]], numbers: Numbers) -> list[tuple[Any, ...]]:
    """Return a row for each layer and whole network.

    The whole has its milliseconds and layer -1.
    """
    names = {record["kernel"]: record["name"] for record in records if "name" in record and "registers" in record}
    rows: list[tuple[Any, ...]] = []
    for record in records:
        if "network" not in record or "failed" in record:
            continue
        facts = (record["network"], record["batch"], record["precision"])
        if "whole" in record:
            rows.append((*facts, -1, "", "", "", "", "", join_values(record["whole"])))
            continue
        plain = [json.dumps(record[key], separators=(",", ":")) for key in ("attributes", "inputs", "outputs")]
        kernels = join_values(numbers[names[k[0]]] for k in record["kernels"])
        rows.append((*facts, record["layer"], record["target"], *plain, kernels, record["us"][0]))
    return rows


_OWN_NAME = re.compile(r"(\d+)x(\d+)(?:x(\d+))? (\d+)x(\d+)x(\d+)(?: /(\d+))?(?: \+(\d+)(?:,(\d+))?)?")


def own_rows(records: Sequence[dict[str, Any]]) -> list[tuple[str, float]]:
    """Return shape and microseconds of tuned dense convolutions.

    `python -m cuts.bench ops` tuned them.
    """
    found = []
    for record in records:
        named = _OWN_NAME.fullmatch(record["name"]) if record["class"] == "conv" and record.get("cuts_ms") else None
        if named:
            sizes = [None if part is None else int(part) for part in named.groups()]
            c, h, w, k, r, s, stride, high, wide = sizes
            pads = (high or 0, (high or 0) if wide is None else wide)
            shape = (record["batch"], c, h, w or h, k, r, s, stride or 1, stride or 1, *pads, 1, 1)
            found.append((join_values(shape, "x"), round(record["cuts_ms"] * 1e3, 3)))
    return found


def merge_rows(old: Iterable[Sequence[Any]], new: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Return rows of layers, each layer of a set once.

    Of a layer that was measured twice the last row counts.
    """
    own = len(("kind", "case", "op", "precision", "shape"))
    return list({tuple(row[:own]): row for row in (*old, *new)}.values())


def read_layers(name: str) -> tuple[list[Sequence[Any]], Numbers]:
    """Return a data set's layers, and its kernels' numbers."""
    rows: list[Sequence[Any]] = [tuple(row[column] for column in LAYERS) for row in read_table(f"{name}-layers")]
    return rows, Numbers((int(row["number"]), row["name"]) for row in read_table(f"{name}-kernels"))


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a compressed table."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([header, *rows])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME))


def write_profile(name: str, folder: Path, layers: Sequence[dict[str, Any]]) -> int:
    """Write the tables of a machine from the records of its layers.

    Return the number of layers. Raises `UsageError` where no layer was measured.
    """
    numbers = Numbers()
    rows = merge_rows([], layer_rows(layers, numbers))
    if not rows:
        raise UsageError("no layer was measured", hint="give the profile more time: --minutes")
    write_table(folder / f"{name}-layers.csv.xz", LAYERS, rows)
    write_table(folder / f"{name}-kernels.csv.xz", ("number", "name"), numbers.rows)
    facts = next(record["facts"] for record in layers if "facts" in record)
    (folder / f"{name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return len(rows)


def main() -> int:
    """Read a directory of records, write the tables of a machine."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", help="what the machine is called")
    parser.add_argument(
        "--own", type=Path, metavar="FILE", help="results of `python -m cuts.bench ops`: tuned kernels of cuts"
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="DIR", help="what runs wrote; of a task in two, the last counts"
    )
    parser.add_argument("--add", action="store_true", help="add layers to the data set instead of making it anew")
    options = parser.parse_args()
    old, numbers = read_layers(options.name) if options.add else ([], Numbers())
    layers, networks, timed = (
        [record for folder in options.folders for record in finished_rows(folder / f"{name}.jsonl")]
        for name in ("layers", "networks", "benchmark")
    )
    new = [*layer_rows(layers, numbers), *(("timed", *row[1:]) for row in layer_rows(timed, numbers))]
    rows = merge_rows(old, new)
    write_table(DATA / f"{options.name}-layers.csv.xz", LAYERS, rows)
    if not options.add:
        write_table(DATA / f"{options.name}-networks.csv.xz", NETWORKS, network_rows(networks, numbers))
    write_table(DATA / f"{options.name}-kernels.csv.xz", ("number", "name"), numbers.rows)
    if options.own:
        tuned = json.loads(options.own.read_text(encoding="utf-8"))["rows"]
        own = own_rows([row for row in tuned if row["suite"] == "ops"])
        write_table(DATA / f"{options.name}-own.csv.xz", ("shape", "us"), own)
    if not options.add:
        facts = next(record["facts"] for record in layers if "facts" in record)
        (DATA / f"{options.name}.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    print(f"{len(rows)} layers, {len(numbers.rows)} kernels; {sum(p.stat().st_size for p in DATA.iterdir())} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
