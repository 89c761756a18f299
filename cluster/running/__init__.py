"""A plan that runs: what a process holds, what moves meanwhile, and the steps in order."""

from .process import Report
from .runner import Runner

__all__ = ["Report", "Runner"]
