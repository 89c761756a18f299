"""Rules about the sizes of candidate schedules.

One text serves arrays of candidates and a single schedule.

A rule yields findings: where it is broken, and a message with its values. Enumeration asks where any is broken; the
verifier formats the messages of one schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from attrs import frozen

from ...ir import FusedGroup, Target, Var
from ..geometry import (
    Count,
    Geometry,
)
from ..model import Features

#: Most operations of the unrolled body of a loop, per thread: compile time grows superlinearly past it.
MAX_BODY = 4096
#: Where a rule is broken, a message, and the values that its braces stand for.
Finding: TypeAlias = tuple[Any, ...]


@frozen(slots=False)
class ScheduleSizes:
    """Sizes of a template's candidates, or of one schedule, per segment."""

    group: FusedGroup
    target: Target
    parts: Sequence[Geometry]

    @cached_property
    def threads(self) -> Count:
        """Threads of a block."""
        found: Count = 0
        for part in self.parts:
            found = np.maximum(found, part.threads)
        return found


Rule: TypeAlias = Callable[[ScheduleSizes], Iterator[Finding]]


def is_broken(findings: Iterable[Finding]) -> Count:
    """Return where candidates break a rule with these findings."""
    found: Count = np.bool_(False)
    for where, *_ in findings:
        found = np.logical_or(found, where)
    return found


def messages(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield a message for each finding of a rule in one schedule."""
    for where, text, *values in findings:
        if np.any(where):
            yield text.format(*([int(v) for v in value] if isinstance(value, tuple) else value for value in values))


def axes_text(axes: Sequence[Var]) -> str:
    """Return the names of a dim's axes."""
    return "*".join(a.name for a in axes)


def check_tiles_several(features: Features, _target: Target) -> Iterator[Finding]:
    """Every staged operand has a tile of several elements."""
    yield np.less_equal(features.tile, 1), "a staged tile has one element only"


def check_shared_memory_fits(features: Features, target: Target) -> Iterator[Finding]:
    """A block takes no more shared memory than there is."""
    most = target.MAX_shared
    yield features.shared > most, "{:.0f} bytes of shared memory, at most {}", features.shared, most


def check_registers_suffice(features: Features, _target: Target) -> Iterator[Finding]:
    """A thread needs no more registers than it gets without spills."""
    needed, limit = features.needed, features.limit
    yield needed > limit, "about {:.0f} registers per thread, at most {:.0f}", needed, limit


def check_bodies_compile(features: Features, _target: Target) -> Iterator[Finding]:
    """No unrolled body is so long that compiling it takes minutes."""
    body = features.body
    yield body > MAX_BODY, "an unrolled body of {:.0f} operations per thread, at most {}", body, MAX_BODY


#: Rules about the counts of candidates.
FEATURE_RULES: tuple[Callable[[Features, Target], Iterator[Finding]], ...] = (
    check_tiles_several,
    check_shared_memory_fits,
    check_registers_suffice,
    check_bodies_compile,
)
