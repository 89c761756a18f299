"""Runs over random points of sums of products, in many processes."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from cuts.backends.devices import find_target
from cuts.ir.errors import atomic_write
from cuts.search.building.workers import Job, Workers
from cuts.tests.fuzz.campaign.asking import SERVICE

#: Seconds that a batch of cases may take.
LIMIT = 300.0
#: Wrong batches after which a run ends.
MAX_ERRORS = 20


def count_kinds(kinds: Mapping[str, str]) -> Counter[str]:
    """Return the number of cases by each part of their kinds."""
    return Counter(part for kind in kinds.values() for part in kind.split(": "))


def fuzz_points(options: argparse.Namespace) -> int:
    """Check the requested number of points; return 1 where one is wrong."""
    workers, begin = Workers(options.jobs, SERVICE), time.monotonic()
    kinds, errors = dict[str, str](), list[str]()
    batch, waiting, end = options.first, 0, begin + options.limit

    def goes_on() -> bool:
        return len(kinds) < options.points and len(errors) < MAX_ERRORS and time.monotonic() < end

    try:
        while waiting or goes_on():
            while workers.load < workers.size + 2 and goes_on():
                workers.submit(Job(batch, "points", (options.target, options.seed, batch), (batch,), LIMIT))
                batch, waiting = batch + 1, waiting + 1
            for done in workers.collect(5.0):
                waiting -= 1
                error = done.error or done.value.error
                kinds |= {} if done.error else done.value.kinds
                if error:
                    errors.append(f"batch {done.job.owner}: {error}")
                    print(errors[-1], flush=True)
    finally:
        workers.close()
    record: dict[str, Any] = {
        "seed": options.seed, "target": find_target(options.target).name, "points": len(kinds), "wrong": errors,
        "kinds": dict(count_kinds(kinds).most_common()), "seconds": round(time.monotonic() - begin, 1),
    }  # fmt: skip
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(options.out) as draft:
            draft.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(", ".join(f"{count} {kind}" for kind, count in record["kinds"].items()))
    print(f"{len(kinds)} different points, {len(errors)} wrong, {record['seconds']} s")
    return int(bool(errors))
