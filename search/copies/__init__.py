"""Fork server: worker processes forked from one that has imported their modules."""

from .fork_server import ForkedProcess, ForkServer
from .threads import one_thread

__all__ = ["ForkServer", "ForkedProcess", "one_thread"]
