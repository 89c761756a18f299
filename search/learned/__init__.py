"""Search that learns: recorded spaces, strategies that fit models to what was measured, and the judgement of both."""

from .correction import LearnedOrder
from .rescoring import rescored

__all__ = ["LearnedOrder", "rescored"]
