"""Search for the wrong kernels of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from ..backends import Array
from ..ir import quote
from .session import Session


@frozen
class WrongStep:
    """Step that writes wrong values: number, wrong tensors, description."""

    number: int
    tensors: tuple[str, ...]
    text: str


def wrong_steps(
    session: Session, inputs: Mapping[str, object], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> Iterator[WrongStep]:
    """Run step by step and yield each with a wrong result.

    Its result is wrong, or overflows the type that it is stored in.
    """
    from ..numerics import compare_outputs, stored_overflow  # reads declarations; a plan runs without them

    for number, written in session.trace(inputs):
        found = {r.tensor: r.text for r in compare_outputs(written, expected, allowed) if not r.ok}
        overflows = {name: stored_overflow(name, array, expected) for name, array in written.items()}
        found = {name: text for name, text in overflows.items() if text} or found
        if found:
            kernel = session.plan.kernels[session.plan.steps[number].kernel]
            members = session.plan.groups[number].get("nodes", ()) if number < len(session.plan.groups) else ()
            text = f"step {number}, kernel {kernel.name}, nodes {_names(members)}: {next(iter(found.values()))}"
            yield WrongStep(number, tuple(found), text)


def first_wrong_step(
    session: Session, inputs: Mapping[str, object], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> str:
    """Run step by step and describe the first wrong kernel.

    The text is empty where each is right.
    """
    return next((step.text for step in wrong_steps(session, inputs, expected, allowed)), "")


def _names(members: object) -> str:
    return (
        ", ".join(quote(str(name)) for name in members) if isinstance(members, (list, tuple)) else quote(str(members))
    )
