"""Processes that are copies of one which has imported what they need."""

from .nursery import Nursery, ProcessCopy
from .threads import one_thread

__all__ = ["Nursery", "ProcessCopy", "one_thread"]
