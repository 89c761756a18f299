"""Descriptions of machines, read from TOML.

Sizes are bytes, rates bytes or floating-point operations a second.
"""

from __future__ import annotations

import math

from attrs import field, frozen

from ...ir import UsageError

#: The most GPUs of a cluster: larger numbers are typing errors.
MAX_GPUS = 1 << 20
#: Kinds of layers.
KINDS = ("block", "embedding", "head")
#: Within these lie all rates and sizes of machines, so that no time overflows.
RATE_LIMITS = (1.0, 1e30)


@frozen
class BlockTimes:
    """Measured seconds of the passes of one layer on one GPU.

    They are of a kind of layer of a model at a micro-batch. `recomputing` is the backward pass with recomputation of
    the forward pass.
    """

    model: str
    micro: int
    forward: float
    backward: float
    recomputing: float
    wp: int = 1
    kind: str = "block"

    def __attrs_post_init__(self) -> None:
        where = f"measured '{self.model}'"
        for name in ("micro", "wp"):
            _expect(getattr(self, name) > 0, where, name, "a number above 0", getattr(self, name))
        _expect(self.kind in KINDS, where, "kind", ", ".join(KINDS), self.kind)
        for name in ("forward", "backward", "recomputing"):
            value, least = getattr(self, name), 1e-12 * (name == "forward" and self.kind == "block")
            _expect(least <= value <= 1e12, where, name, "seconds, above 0 where it is forward", value)


#: Fields of a machine that need not be known.
_OPTIONAL = ("storage", "host_link", "p2p")


@frozen
class Machine:
    """A cluster: nodes of equal GPUs, each with its share of storage.

    `peak` is in the model's precision and `efficiency` the part of it that layers reach. `storage` (bytes) and `memory`
    are of one GPU; None means that the size of the storage is unknown and is not checked. `gpu_link` joins GPUs of a
    node, `node_link` a node with the others. `p2p` is the one bandwidth between GPUs that the thesis' forms know; by
    default the slower of the links. `request` is the time of one request to storage besides its bytes: the closed forms
    leave it out, the simulator does not.
    """

    name: str
    nodes: int
    gpus: int
    peak: float
    efficiency: float
    memory: float
    storage_read: float
    storage_write: float
    gpu_link: float
    node_link: float
    storage: float | None = None
    host_link: float | None = None
    p2p: float | None = None
    request: float = 0.0
    measured: tuple[BlockTimes, ...] = field(default=())

    def __attrs_post_init__(self) -> None:
        for name in (
            "nodes",
            "gpus",
            "peak",
            "efficiency",
            "memory",
            "storage_read",
            "storage_write",
            "gpu_link",
            "node_link",
        ):
            value = getattr(self, name)
            _expect(0 < value < math.inf, self.name, name, "a number above 0", value)
        for name in _OPTIONAL:
            value = getattr(self, name)
            _expect(value is None or 0 < value < math.inf, self.name, name, "a number above 0", value)
        for name in ("peak", "memory", "storage_read", "storage_write", "gpu_link", "node_link", *_OPTIONAL):
            value = getattr(self, name)
            text = f"{RATE_LIMITS[0]:g} to {RATE_LIMITS[1]:g}"
            _expect(value is None or RATE_LIMITS[0] <= value <= RATE_LIMITS[1], self.name, name, text, value)
        _expect(self.count <= MAX_GPUS, self.name, "nodes x gpus", f"at most {MAX_GPUS}", self.count)
        _expect(1e-6 <= self.efficiency <= 1, self.name, "efficiency", "at most 1, at least 1e-06", self.efficiency)
        _expect(0 <= self.request < math.inf, self.name, "request", "0 or more seconds", self.request)

    @property
    def count(self) -> int:
        """All GPUs."""
        return self.nodes * self.gpus

    @property
    def read(self) -> float:
        """Bytes a second from storage to a GPU.

        It is the slower of the storage and the link from the host.
        """
        return min(self.storage_read, self.host_link or math.inf)

    @property
    def write(self) -> float:
        """Bytes a second from a GPU to storage."""
        return min(self.storage_write, self.host_link or math.inf)

    @property
    def thesis_link(self) -> float:
        """The bandwidth between GPUs that the thesis' forms take."""
        return self.p2p or min(self.gpu_link, self.node_link)


def _expect(holds: bool, owner: str, name: str, expected: str, found: object) -> None:
    if not holds:
        raise UsageError(f"{owner}: {name}: expected {expected}, found {found}")
