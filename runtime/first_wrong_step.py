"""Search for the first wrong kernel of a plan."""

from __future__ import annotations

from collections.abc import Mapping

from ..backends import Array
from ..ir import quote
from .session import Session


def first_wrong_step(
    session: Session, inputs: Mapping[str, object], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> str:
    """Run step by step and describe the first wrong kernel.

    Its result is wrong, or overflows the type that it is stored in; return an empty text where each is right.
    """
    from ..numerics import compare_outputs, stored_overflow  # reads declarations; a plan runs without them

    for number, written in session.trace(inputs):
        found = [result.text for result in compare_outputs(written, expected, allowed) if not result.ok]
        found = [text for name, array in written.items() if (text := stored_overflow(name, array, expected))] or found
        if found:
            kernel = session.plan.kernels[session.plan.steps[number].kernel]
            members = session.plan.groups[number].get("nodes", ()) if number < len(session.plan.groups) else ()
            return f"step {number}, kernel {kernel.name}, nodes {_names(members)}: {found[0]}"
    return ""


def _names(members: object) -> str:
    return (
        ", ".join(quote(str(name)) for name in members) if isinstance(members, (list, tuple)) else quote(str(members))
    )
