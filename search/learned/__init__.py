"""Search that learns: recorded spaces, strategies that fit models to what was measured, and the judgement of both."""

from .correction import LearnedOrder
from .gaussian import Beliefs, GaussianProcess, expected_gain
from .rescoring import rescored

__all__ = ["Beliefs", "GaussianProcess", "LearnedOrder", "expected_gain", "rescored"]
