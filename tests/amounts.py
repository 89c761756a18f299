"""How much tests draw: what a commit can wait for, and much more at night (`CUTS_HYPOTHESIS_PROFILE=nightly`)."""

from __future__ import annotations

import os

NIGHTLY = os.environ.get("CUTS_HYPOTHESIS_PROFILE") == "nightly"


def examples(usually: int, night: int) -> int:
    """Return how many examples a property is tried on."""
    return night if NIGHTLY else usually
