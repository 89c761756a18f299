"""Which processors of a host are threads of one core, and a share of them that is made of whole cores.

Half of a host with sixteen cores of two threads each is eight cores with both threads of each, as a rented machine of
half the size has them. The first half of its 32 processors, which Linux numbers core by core before it comes to the
second thread of any, is all sixteen cores.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

#: Where Linux says what processors are.
SYSTEM = Path("/sys/devices/system/cpu")


def physical_cores(processors: Collection[int], system: Path = SYSTEM) -> list[list[int]]:
    """Return processors by the cores whose threads they are, in order; each is a core where the system does not say."""
    cores: dict[int, list[int]] = {}
    for processor in sorted(processors):
        first = min(_threads(processor, system).intersection(processors) | {processor})
        cores.setdefault(first, []).append(processor)
    return [cores[first] for first in sorted(cores)]


def share_of(processors: Collection[int], part: int, parts: int, spread: bool, system: Path = SYSTEM) -> Sequence[int]:
    """Return some of so many parts of the processors: whole cores with all their threads, or where they are `spread`
    the first ones, whatever cores these belong to.
    """
    if spread:
        return sorted(processors)[: max(1, len(processors) * part // parts)]
    cores = physical_cores(processors, system)
    return sorted(p for core in cores[: max(1, len(cores) * part // parts)] for p in core)


def _threads(processor: int, system: Path) -> set[int]:
    """Return the processors that are threads of the same core, as Linux lists them: `0,16` or `0-1`."""
    try:
        text = (system / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        ranges = [tuple(map(int, each.split("-"))) for each in text.strip().split(",")]
    except (OSError, ValueError):
        return {processor}
    return {p for each in ranges for p in range(each[0], each[-1] + 1)}
