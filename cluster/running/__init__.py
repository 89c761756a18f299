"""Execution of a cluster plan: processes, transfers, and the steps in order."""

from .process import Report
from .runner import Runner
