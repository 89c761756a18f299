"""Child processes, the fork server, and their memory and interrupts."""

from .child import START_LIMIT, Child, ChildLost, SessionEnded
from .fork_server import ForkServer
from .gc_tuning import reduce_garbage_collection, reduced_garbage_collection
from .interrupts import first_interrupt_stops
from .threads import one_thread
