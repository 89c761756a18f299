"""Policies of the order of arithmetic.

Under `batch-invariant`, equal rows have equal results in a batch of any size and at any place in it. An order of sums
then follows from reduced extents, element types and the target, never from extents of results
(`passes.schedule.fixed_order`). No axis is declared a batch: every axis of a result is one.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from attrs import evolve

from ..errors import UsageError
from .target import Target

PolicyName: TypeAlias = Literal["fastest", "batch-invariant"]
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def check_policy(policy: str, deterministic: bool = True, libraries: bool = False) -> None:
    """Raise `UsageError` for a policy that is unknown or cannot be followed.

    Atomic sums and libraries have no known order.
    """
    if policy not in POLICIES:
        raise UsageError(f"unknown policy '{policy}'", hint=f"policies are: {', '.join(POLICIES)}")
    if policy == "batch-invariant" and (libraries or not deterministic):
        other = "routines of libraries" if libraries else "atomic sums"
        raise UsageError(f"policy '{policy}': {other} add in an order of their own", hint="leave one of them out")


def with_policy(target: Target, policy: str, deterministic: bool = True) -> Target:
    """Return a target whose kernels follow a policy.

    Raises `UsageError` where they cannot.
    """
    check_policy(policy, deterministic)
    if policy == "batch-invariant" and target.dialect == "reference":
        raise UsageError(f"target '{target.name}' has no kernels, so it cannot follow policy '{policy}'")
    return evolve(target, invariant=policy == "batch-invariant")
