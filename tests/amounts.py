"""Sizes of random tests by Hypothesis profile.

The daily profile draws few examples, the profile of the night (`CUTS_HYPOTHESIS_PROFILE=nightly`) many more.
"""

from __future__ import annotations

import os

NIGHTLY = os.environ.get("CUTS_HYPOTHESIS_PROFILE") == "nightly"


#: The part of its usual examples that a property is tried on by day: all tests together have a quarter of an hour.
BY_DAY = 0.45


def examples(usually: int, night: int) -> int:
    """Return how many examples a property is tried on."""
    return night if NIGHTLY else max(1, round(BY_DAY * usually))
