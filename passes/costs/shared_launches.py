"""Estimated time and lower bound of a launch that several groups share.

Blocks of one member fill the machine where those of another leave room, so the work of each multiprocessor adds up over
all members; the latency of one member from its first load to its last store is a lower bound for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import Target
from ..schedule import Candidate

#: Resources of a multiprocessor that blocks of several members use one after the other. Members may read the same data,
#: so bytes are not among them.
SERIAL_RESOURCES = ("math", "tensor", "issue", "shared")


def shared_launch_seconds(candidates: Sequence[Candidate], target: Target) -> float:
    """Return the estimated seconds of a shared launch.

    They are those of its longest member, or of all its blocks if they take longer, and at least the lower bound: free
    room on a multiprocessor is no free arithmetic.

    A kernel of few blocks leaves room for others. With fewer resident blocks than it would have, because another member
    needs more registers or shared memory, a kernel takes proportionally longer, which is the worst case.
    """
    resident = min(c.features["occupancy"] for c in candidates)
    longest = whole = 0.0
    for candidate in candidates:
        work = max(0.0, candidate.score - target.launch_time)
        wanted = min(candidate.features["occupancy"], -(-candidate.features["grid"] // target.NUM_SM))
        work *= max(1.0, wanted / max(1.0, resident))
        longest = max(longest, work)
        whole += work * min(1.0, candidate.features["grid"] / (target.NUM_SM * max(1.0, resident)))
    return max(target.launch_time + max(longest, whole), shared_launch_bound(candidates, target)[0])


def shared_launch_bound(candidates: Sequence[Candidate], target: Target) -> tuple[float, str]:
    """Return the lower bound of a shared launch, and its limiting resource.

    It is the longest member, or a resource that all members together use for longer.
    """
    longest = max(candidates, key=lambda candidate: candidate.bound)
    added = {
        name: sum(_spread_seconds(candidate, name, target) for candidate in candidates) for name in SERIAL_RESOURCES
    }
    most = max(added, key=lambda name: added[name])
    whole = target.launch_time + added[most]
    return (whole, most) if whole > longest.bound else (longest.bound, longest.limit)


def _spread_seconds(candidate: Candidate, resource: str, target: Target) -> float:
    """Return the seconds of a resource where other members fill idle multiprocessors."""
    grid = candidate.features["grid"]
    fullest = -(-grid // target.NUM_SM)
    return candidate.features.get(f"time_{resource}", 0.0) * grid / (fullest * target.NUM_SM) if grid else 0.0
