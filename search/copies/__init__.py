"""Processes that are copies of one which has imported what they need."""

from .nursery import Nursery, ProcessCopy

__all__ = ["Nursery", "ProcessCopy"]
