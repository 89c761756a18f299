"""Turn the records of `bench/networks/launches.py` into the table of timed plans in `latency/data/`, numbers rounded.

    python -m cuts.bench.plan_data h200 FOLDER...

A folder has files `launches-MODEL-BATCH.json`, at any depth. Plans whose estimates were not kept are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cuts.bench.layer_data import DATA, write_table
from cuts.latency.own_plans import TERMS

#: Networks as the profile of their layers names them.
NAMES = {"ResNet-50": "resnet50", "Inception-v3": "inception_v3", "DenseNet-121": "densenet121",
         "MobileNetV2": "mobilenet_v2", "BERT-base": "bert_base", "DLRM": "dlrm"}  # fmt: skip
#: How much slower than the fastest plan of its workload one may be.
NEAR = 1.05
COLUMNS = ("network", "batch", "launch", "us", "estimate", "bound", *TERMS)


def rows(records: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, object]]:
    """Yield the launches of each plan, and behind them the whole; of plans of one workload those near the fastest, as
    what others lost is no fault of the model.
    """
    plans = {(record["workload"], record["microseconds"]): record for record in records if _whole(record)}
    for (workload, us), record in plans.items():
        if us > NEAR * min(other for name, other in plans if name == workload):
            continue
        model, _, batch = workload.rpartition(" b")
        common = {"network": NAMES.get(model, model), "batch": batch}
        for each in record["launches"]:
            own = {name: f"{each['terms'].get(name, 0.0):.4g}" for name in TERMS}
            figures = {name: f"{each[name]:.5g}" for name in ("estimate", "bound")}
            yield common | {"launch": "+".join(each["ops"]), "us": f"{each['alone']:.5g}"} | figures | own
        yield common | {"launch": "whole", "us": f"{us:.6g}"}


def _whole(record: Mapping[str, Any]) -> bool:
    """Whether there is a time and an estimate of every launch; older records have bounds in the place of estimates."""
    launches = record["launches"]
    return all(each.get("alone") and each.get("estimate") for each in launches) and any(
        each["estimate"] > 1.001 * each["bound"] for each in launches
    )


def found(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield the records of some folders, by name."""
    files = [file for folder in folders for file in folder.rglob("launches-*.json")]
    for file in sorted(files, key=lambda each: (each.name, str(each))):
        yield json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("profile")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    made = list(rows(list(found(options.folders))))
    table = [[row.get(name, "") for name in COLUMNS] for row in made]
    write_table(DATA / f"{options.profile}-plans.csv.xz", COLUMNS, table)
    print(f"{sum(row['launch'] == 'whole' for row in made)} plans, {len(made)} rows")


if __name__ == "__main__":
    main()
