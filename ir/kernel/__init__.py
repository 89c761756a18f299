"""Kernel IR: a scheduled group as structured phases over block tiles."""

from .bulk_copies import BulkCopy, BulkFetch, MbarrierArrive, MbarrierInit, MbarrierWait
from .items import Item, Loop, Phase, Producer, Share, bulk_fetches, has_synchronisation, loops, phases
from .kernels import (
    Define,
    HorizontalKernel,
    Kernel,
    SharedBuffer,
    done_variable,
    member_name,
    opening_items,
    turn_variable,
)
from .synchronisation import (
    Barrier,
    Commit,
    LaneExchange,
    ProductCommit,
    ProductFence,
    ProductWait,
    ProxyFence,
    TurnPass,
    TurnWait,
    Wait,
)
