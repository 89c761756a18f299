"""Comparing what a plan computes with what an oracle says.

What is allowed, and how errors are counted, stands in `ir.rounding`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from attrs import frozen

from ..backends import Array
from ..ir import NumericsError, dtype_of_numpy, magnitude, quote, relative_error
from .executor import Session


@frozen
class Comparison:
    """One tensor against its oracle: the worst error relative to the tensor's magnitude, and what rounding explains."""

    tensor: str
    error: float
    tolerance: float
    worst: str

    @property
    def ok(self) -> bool:
        """Whether rounding explains the difference."""
        return self.error <= self.tolerance

    @property
    def text(self) -> str:
        """One line for people."""
        verdict = "ok" if self.ok else "WRONG"
        place = "" if self.ok else f", worst {self.worst}"
        return f"{quote(self.tensor)}: error {self.error:.3g}, tolerance {self.tolerance:.3g}: {verdict}{place}"


def compare(tensor: str, found: Array, expected: Array, allowed: float) -> Comparison:
    """Compare two arrays: differences count relative to an element's own magnitude plus the tensor's root mean square.

    A value that the type of what was found cannot hold is infinite there, whatever the oracle computed with more bits.
    """
    if found.shape != expected.shape:
        return Comparison(tensor, math.inf, allowed, f"shape {list(found.shape)}, expected {list(expected.shape)}")
    if found.size == 0:
        return Comparison(tensor, 0.0, allowed, "")
    with np.errstate(all="ignore"):
        want = expected.astype(np.float64)
        kind = dtype_of_numpy(found.dtype)
        if kind is not None and kind.is_float:
            want = np.where(np.isinf(expected.astype(found.dtype)), np.copysign(math.inf, want), want)
    error = relative_error(found, want, magnitude(want))
    index = np.unravel_index(int(np.argmax(error)), error.shape)
    worst = f"at {[int(i) for i in index]}: found {found[index]}, expected {expected[index]}"
    return Comparison(tensor, float(error[index]), allowed, worst)


def compare_outputs(
    found: Mapping[str, Array], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> tuple[Comparison, ...]:
    """Compare every tensor that the oracle knows."""
    return tuple(compare(name, found[name], expected[name], allowed[name]) for name in found if name in expected)


def first_wrong_step(
    session: Session, inputs: Mapping[str, object], expected: Mapping[str, Array], allowed: Mapping[str, float]
) -> str:
    """Run step by step and describe the first kernel whose result is wrong, or return an empty text where each is
    right.
    """
    for number, written in session.trace(inputs):
        for result in compare_outputs(written, expected, allowed):
            if not result.ok:
                kernel = session.plan.kernels[session.plan.steps[number].kernel]
                members = session.plan.groups[number].get("nodes", ()) if number < len(session.plan.groups) else ()
                return f"step {number}, kernel {kernel.name}, nodes {_names(members)}: {result.text}"
    return ""


def require_right(results: tuple[Comparison, ...], where: str) -> None:
    """Raise a `NumericsError` that names every wrong tensor."""
    wrong = [result.text for result in results if not result.ok]
    if wrong:
        raise NumericsError(f"{where}: wrong numbers: {'; '.join(wrong)}")


def _names(members: object) -> str:
    return (
        ", ".join(quote(str(name)) for name in members) if isinstance(members, (list, tuple)) else quote(str(members))
    )
