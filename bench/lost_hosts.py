"""Searches shared out among four simulated hosts, of which workers are lost at random: is a result lost or doubled, or
another winner found than by an undisturbed search?

    python bench/lost_hosts.py --kills 50 --out bench/results/lost_hosts.json

Every search has another seed, until as many workers were lost. Devices are made up, kernels are printed for OpenCL. The
exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cuts.search.database import Database
from cuts.tests.search.hosts import PROBLEMS, SHORT, Hosts, results, tuned

#: The chance that a worker is lost over a problem.
LOST = 0.5


def search(hosts: Hosts | None) -> tuple[list[tuple[str, float]], list[set[str]]]:
    """Return the winners of a search, and the schedules that the database has of each problem."""
    database = Database(None)
    tuned(hosts, PROBLEMS, database, []).run(PROBLEMS, SHORT)
    return results(database, PROBLEMS), [{t.schedule for t in database.trials(p)} for p in PROBLEMS]


def compared(kills: int, places: int = 4) -> dict[str, int]:
    """Return what came of searches in which so many workers were lost."""
    winners, schedules = search(None)
    found = {"searches": 0, "kills": 0, "lost": 0, "doubled": 0, "other winners": 0}
    while found["kills"] < kills:
        hosts = Hosts(places, LOST, seed=found["searches"])
        own, tried = search(hosts)
        found["searches"] += 1
        found["kills"] += hosts.kills
        found["lost"] += sum(len(a - b) for a, b in zip(schedules, tried, strict=True))
        found["doubled"] += len(hosts.done) - len(set(hosts.done))
        found["doubled"] += sum(len(b - a) for a, b in zip(schedules, tried, strict=True))
        found["other winners"] += sum(a != b for a, b in zip(winners, own, strict=True))
        print(f"search {found['searches']}: {found}", flush=True)
    return found


def main() -> int:
    """Compare, keep what came of it and say whether all is as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, metavar="N", help="workers that are lost, at least")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "lost_hosts.json")
    options = parser.parse_args()
    found = compared(options.kills)
    options.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any(found[name] for name in ("lost", "doubled", "other winners")))


if __name__ == "__main__":
    sys.exit(main())
