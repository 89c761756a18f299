"""Precision policies that the kernels of a target can follow."""

from __future__ import annotations

from ..errors import UsageError
from .matrix_instructions import MATH_MODES, MMA_INSTRUCTIONS
from .precision import PRECISIONS, Precision, PrecisionName
from .target import Target


def check_precision(name: str, target: Target) -> None:
    """Raise `UsageError` where a target's kernels cannot follow a precision policy.

    The message lists the policies that they can follow.
    """
    able = precisions_of(target)
    if name not in PRECISIONS:
        raise UsageError(f"unknown precision '{name}'", hint=f"precisions are: {', '.join(PRECISIONS)}")
    if name not in able:
        missing = "kernels" if target.dialect == "reference" else f"matrix instructions of {_format(name).upper()}"
        raise UsageError(
            f"target '{target.name}' has no {missing}, so it cannot follow precision '{name}'",
            hint=f"it can follow: {', '.join(able)}",
        )


def precisions_of(target: Target) -> tuple[PrecisionName, ...]:
    """Return the precision policies that kernels for a target can follow."""
    return tuple(p.name for p in PRECISIONS.values() if _can_follow(p, target))


def _can_follow(policy: Precision, target: Target) -> bool:
    """Return whether a target has the features of a policy: kernels, and matrix instructions for its math mode."""
    if target.dialect == "reference":
        return policy.name == "fp32"
    return not policy.math or _format(policy.name) in {MMA_INSTRUCTIONS[name].format for name, _ in target.atoms}


def _format(policy: str) -> str:
    """Return the format in which a policy with a math mode multiplies."""
    return MATH_MODES[PRECISIONS[policy].math].format
