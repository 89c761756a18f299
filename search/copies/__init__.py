"""Fork server: worker processes forked from one that has imported their modules."""

from .nursery import Nursery, ProcessCopy
from .threads import one_thread

__all__ = ["Nursery", "ProcessCopy", "one_thread"]
