"""What a launch of several groups takes: about, and at least.

Blocks of one member fill the machine where those of another leave room, so what each multiprocessor must do adds up,
whoever's blocks it is; what one member needs from its first load to its last store is the least for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Target
from .schedule import Candidate

#: What blocks of several members cannot share: a multiprocessor does one after the other. What they read may be the
#: same, so that bytes do not add up for certain.
ADDED = ("math", "tensor", "issue", "shared")


def seconds_together(candidates: Sequence[Candidate], target: Target) -> float:
    """Return about what a launch takes: that of its longest member, or of all its blocks, if they need longer, and no
    less than is possible: room that a kernel leaves on a multiprocessor is no arithmetic that it leaves.

    A kernel of few blocks leaves room for others. With fewer blocks on an SM, because another member needs more of it,
    a kernel takes as much longer, which is the worst that may happen.
    """
    resident = min(c.features["occupancy"] for c in candidates)
    longest = whole = 0.0
    for candidate in candidates:
        work = max(0.0, _alone(candidate) - target.launch_time)
        work *= max(1.0, candidate.features["occupancy"] / max(1.0, resident))
        longest = max(longest, work)
        whole += work * min(1.0, candidate.features["grid"] / (target.NUM_SM * max(1.0, resident)))
    return max(target.launch_time + max(longest, whole), bound_together(candidates, target)[0])


def _alone(candidate: Candidate) -> float:
    """Return what a kernel takes by itself: as measured, else by the model."""
    measured = candidate.measured.get("measured")
    return float(measured) if isinstance(measured, (int, float)) else candidate.score


def bound_together(candidates: Sequence[Candidate], target: Target) -> tuple[float, str]:
    """Return the least that a launch takes, and what limits it: the longest member, or a resource of which all need
    more than that.
    """
    longest = max(candidates, key=lambda candidate: candidate.bound)
    added = {name: sum(_spread(candidate, name, target) for candidate in candidates) for name in ADDED}
    most = max(added, key=lambda name: added[name])
    whole = target.launch_time + added[most]
    return (whole, most) if whole > longest.bound else (longest.bound, longest.limit)


def _spread(candidate: Candidate, resource: str, target: Target) -> float:
    """Return the seconds that blocks need of a resource where others fill the multiprocessors that they leave idle."""
    grid = candidate.features["grid"]
    fullest = -(-grid // target.NUM_SM)
    return candidate.features.get(f"time_{resource}", 0.0) * grid / (fullest * target.NUM_SM) if grid else 0.0
