"""What the processes of a search did when, as rows of numbers: the processor's time that each took, which Linux says,
and what they say themselves (`cuts.search.course`).
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from attrs import define, field
from cuts.bench.records import Row
from cuts.search.copies.twin import NAME
from cuts.search.course import SLICE, Timeline
from cuts.search.task import SearchTask

#: Seconds between two looks at all processes; those that a kind takes to get a line; most slices of a line.
LOOK, WORTH, MOST = 0.1, 0.15, 44
#: Searches that are named as the last, or as those of most rounds.
NAMED = 4
#: What only says that a process waits for others, and what is counted too.
TURNS, COUNTED = " search", (" sample", " build")
#: What the kinds of processes are told by, in their commands; a nursery that is a copy, and its own, in their names.
COPIED, SERVING = (".copying", NAME.decode()), "cuts.search.child"


@define
class ProcessTimes:
    """The processor's time that a process and all below it take, and what of it the system takes, by slices of `SLICE`
    seconds; looked at by a thread while a block runs.
    """

    root: int
    parents: dict[int, int] = field(factory=dict)
    commands: dict[int, str] = field(factory=dict)
    taken: dict[int, dict[int, float]] = field(factory=lambda: defaultdict(lambda: defaultdict(float)))
    system: dict[int, dict[int, float]] = field(factory=lambda: defaultdict(lambda: defaultdict(float)))
    _last: dict[int, tuple[float, float]] = field(factory=dict)
    _over: threading.Event = field(factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> ProcessTimes:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        assert self._thread is not None
        self._thread.join()

    def rows(self) -> dict[str, Mapping[int, float]]:
        """Return the seconds of each kind of process, by slices."""
        found: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        searchers = [pid for pid in self.commands if self._kind(pid) == "searcher"]
        for what, by_process in (("cores", self.taken), ("system", self.system)):
            for pid, slices in by_process.items():
                owner = self._owner(pid)
                whose = f" {searchers.index(owner)}" if owner in searchers else ""
                for number, seconds in slices.items():
                    found[f"{what}: {self._kind(pid)}{whose}"][number] += seconds
        return {kind: found[kind] for kind in sorted(found)}

    def _owner(self, pid: int) -> int:
        """Return the process that started one, itself or through another, and asks for work."""
        while pid != self.root and self._kind(pid) not in ("searcher", "asking"):
            pid = self.parents.get(pid, self.root)
        return pid

    def _kind(self, pid: int) -> str:
        if pid == self.root:
            return "asking"
        if self._copied(pid):
            return "workers" if self._copied(self.parents[pid]) else "nursery"
        if SERVING in self.commands[pid]:
            return "searcher" if pid in self.parents.values() else "device"
        return "others"

    def _copied(self, pid: int) -> bool:
        return any(mark in self.commands.get(pid, "") for mark in COPIED)

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
                try:
                    self._look(pid)
                except (OSError, ValueError, IndexError):  # it has ended
                    continue

    def _look(self, pid: int) -> None:
        place = Path("/proc", str(pid))
        values = place.joinpath("stat").read_text().rpartition(")")[2].split()
        parent = int(values[1])
        if pid != self.root and parent not in self.commands:
            return
        self.parents[pid] = parent
        # Always anew: what is about to become another program has the command of the one that it comes from.
        name, command = (place.joinpath(file).read_bytes() for file in ("comm", "cmdline"))
        said = (name + command).replace(b"\0", b" ").decode(errors="replace")
        self.commands[pid] = said if command else self.commands.get(pid, "")  # one that has ended has none
        user, system = (int(value) / os.sysconf("SC_CLK_TCK") for value in values[11:13])
        before, number = self._last.get(pid, (0.0, 0.0)), int(time.monotonic() // SLICE)
        self.taken[pid][number] += user + system - sum(before)
        self.system[pid][number] += system - before[1]
        self._last[pid] = user, system


def described(
    begun: float, timeline: Timeline, stages: Sequence[tuple[str, float, float]], tasks: Sequence[Any]
) -> Row:
    """Return as JSON values what was done since a moment: kinds by slices, stages, and the searches that ended last."""
    zero = int(begun // SLICE)
    return {
        "zero": zero,
        "kinds": {
            kind: {
                "seconds": {n - zero: round(s, 3) for n, s in sorted(busy.seconds.items()) if n >= zero},
                "counts": {n - zero: c for n, c in sorted(busy.counts.items()) if n >= zero},
                "first": round(busy.first - begun, 3), "last": round(busy.last - begun, 3),
            }
            for kind, busy in sorted(timeline.done.items())
        },
        "stages": [[name, round(a - begun, 3), round(b - begun, 3)] for name, a, b in stages],
        "searches": [_search(task, begun) for task in tasks if isinstance(task, SearchTask) and task.ended],
    }  # fmt: skip


def _search(task: SearchTask, begun: float) -> Row:
    tried = max(len(task.entries), len(task.trials))
    return {"kernel": task.problem.label or task.problem.key[:12], "begun": round(task.begun - begun, 3),
            "ended": round(task.ended - begun, 3), "rounds": task.round, "tried": tried}  # fmt: skip


def lines(timeline: Row, processes: Mapping[str, Mapping[int, float]]) -> Iterator[str]:
    """Yield what was busy in each slice: how many of each kind on average, and how many kernels were timed."""
    kinds: dict[str, dict[int, float]] = {
        kind: {number - timeline["zero"]: s for number, s in slices.items()} for kind, slices in processes.items()
    }
    kinds |= {kind: _numbered(busy["seconds"]) for kind, busy in timeline["kinds"].items()}
    count = max((n for slices in kinds.values() for n in slices), default=0) + 1
    several = -(-count // MOST)
    width = SLICE * several
    yield f"{'seconds':34}" + "".join(
        f"{n * width:3.0f}" if not n * width % 1 else "   " for n in range(-(-count // several))
    )
    for kind, slices in kinds.items():
        if sum(slices.values()) >= WORTH and not kind.endswith(TURNS):
            yield f"{kind[:34]:34}" + _cells(slices, count, several, width)
    for kind, busy in timeline["kinds"].items():
        if kind.endswith(COUNTED):
            text = _cells(_numbered(busy["counts"]), count, several, 10.0)
            yield (
                f"tens of {kind}"[:34].ljust(34)
                + text
                + f" {sum(busy['counts'].values())}, first at {busy['first']:.1f} s"
            )
    yield "stages: " + ", ".join(f"{n} {a:.1f}-{b:.1f}" for n, a, b in timeline["stages"] if b - a >= 0.1)
    searches = sorted(timeline["searches"], key=lambda each: -each["ended"])
    for each in searches[:NAMED]:
        yield (f"ended last: {each['kernel'][:60]} {each['begun']:.1f}-{each['ended']:.1f} s, "
               f"{each['rounds']} rounds, {each['tried']} points")  # fmt: skip
    if searches:
        ends = sorted(each["ended"] for each in searches)
        parts = ", ".join(
            f"{part:.0%} {ends[min(len(ends) - 1, int(part * len(ends)))]:.1f}" for part in (0, 0.25, 0.5, 0.75)
        )
        yield f"{len(ends)} searches ended at: {parts}, all {ends[-1]:.1f}"


def _numbered(slices: Mapping[Any, float]) -> dict[int, float]:
    """Return slices by number, which JSON makes text of."""
    return {int(number): value for number, value in slices.items()}


def _cells(slices: Mapping[int, float], count: int, several: int, unit: float) -> str:
    found = []
    for start in range(0, count, several):
        value = sum(slices.get(n, 0.0) for n in range(start, start + several)) / unit
        found.append(
            "  ." if not value else f" {value:2.0f}" if value >= 9.95 else f" {value:.1f}"[-3:].replace("0.", " .")
        )
    return "".join(found)
