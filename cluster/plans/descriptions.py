"""Descriptions of transformers and of machines, read from TOML.

Sizes are bytes, rates bytes or floating-point operations a second, lengths tokens, batches sequences.
"""

from __future__ import annotations

import math

from attrs import field, frozen

from ...ir import DType, UsageError

#: Values that an optimiser keeps of a parameter besides the parameter.
MOMENTS = {"adam": 2, "momentum": 1, "sgd": 0}
PRECISIONS = ("mixed", "single")
#: The largest size of a model, and the most GPUs of a cluster: larger numbers are typing errors.
MAX_MODEL_SIZE, MAX_GPUS = 10**8, 1 << 20
#: Within these lie all rates and sizes of machines, so that no time overflows.
RATE_LIMITS = (1.0, 1e30)


@frozen
class Transformer:
    """Stack of transformer blocks between an embedding and a head.

    With `vocabulary` 0 it is the blocks alone. `precision` is "mixed" (the thesis' rules: parameters, gradients and
    activations of 2 bytes, the optimiser's values of 4 with a copy of the parameters among them) or "single" (4 bytes
    for all). `gated` blocks have three matrices after the attention and norms without a shift, as LLaMA's; `batch` is a
    mini-batch in sequences.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    batch: int
    inner: int = 0
    kv_heads: int = 0
    vocabulary: int = 0
    gated: bool = False
    biases: bool = True
    precision: str = "mixed"
    optimiser: str = "adam"

    def __attrs_post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "sequence", "batch"):
            _expect(getattr(self, name) > 0, self.name, name, "a number above 0", getattr(self, name))
        for name in ("inner", "kv_heads", "vocabulary"):
            _expect(getattr(self, name) >= 0, self.name, name, "0 or more", getattr(self, name))
        for name in ("layers", "hidden", "heads", "sequence", "batch", "inner", "kv_heads", "vocabulary"):
            _expect(
                getattr(self, name) <= MAX_MODEL_SIZE, self.name, name, f"at most {MAX_MODEL_SIZE}", getattr(self, name)
            )
        divisor = f"a number that divides {self.hidden}"
        _expect(self.hidden % self.heads == 0, self.name, "heads", divisor, self.heads)
        _expect(
            self.heads % self.groups == 0, self.name, "kv_heads", f"a number that divides {self.heads}", self.kv_heads
        )
        _expect(self.precision in PRECISIONS, self.name, "precision", " or ".join(PRECISIONS), self.precision)
        _expect(self.optimiser in MOMENTS, self.name, "optimiser", ", ".join(MOMENTS), self.optimiser)

    @property
    def groups(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Neurons between the last two matrices of a block."""
        return self.inner or 4 * self.hidden

    @property
    def keys(self) -> int:
        """Elements of a token's keys, and of its values."""
        return self.hidden // self.heads * self.groups

    @property
    def dtype(self) -> DType:
        """The type of parameters, gradients and activations.

        Of the types of 2 bytes it is the one with the range of fp32, so that no gradient has to be scaled.
        """
        return DType.BF16 if self.precision == "mixed" else DType.F32

    @property
    def value_bytes(self) -> int:
        """Bytes of a parameter, a gradient or an activation in layers."""
        return self.dtype.size

    @property
    def state_bytes(self) -> int:
        """Bytes that the optimiser keeps of a parameter.

        They are its moments, and in mixed precision the parameter in 4 bytes.
        """
        return 4 * (MOMENTS[self.optimiser] + (self.precision == "mixed"))

    @property
    def matrices(self) -> int:
        """Elements of the matrices of a block."""
        return 2 * self.hidden * (self.hidden + self.keys) + (3 if self.gated else 2) * self.hidden * self.width

    @property
    def block_parameters(self) -> int:
        """Parameters of a block: matrices, biases where there are any, two norms."""
        biases = 3 * self.hidden + 2 * self.keys + self.width * (2 if self.gated else 1) if self.biases else 0
        return self.matrices + biases + 2 * self.hidden * (1 if self.gated else 2)

    @property
    def replicated_parameters(self) -> int:
        """Parameters of a block that each of its GPUs holds.

        They are norms, and biases that are added once.
        """
        return 2 * self.hidden * ((1 if self.gated else 2) + self.biases)

    @property
    def parameters(self) -> int:
        """All parameters.

        The head's matrix is the embedding's, except in gated models, which have one of its own.
        """
        return self.layers * self.block_parameters + (2 if self.gated else 1) * self.vocabulary * self.hidden

    @property
    def block_flops(self) -> float:
        """Floating-point operations of a block's forward pass for one sequence.

        Each multiply-add counts as two.
        """
        return 2.0 * self.sequence * self.matrices + 4.0 * self.sequence**2 * self.hidden


@frozen
class BlockTimes:
    """Measured seconds of one block's passes on one GPU.

    They are of a model at a micro-batch. `recomputing` is the backward pass with recomputation of the forward pass.
    """

    model: str
    micro: int
    forward: float
    backward: float
    recomputing: float
    wp: int = 1

    def __attrs_post_init__(self) -> None:
        where = f"measured '{self.model}'"
        for name in ("micro", "wp"):
            _expect(getattr(self, name) > 0, where, name, "a number above 0", getattr(self, name))
        for name in ("forward", "backward", "recomputing"):
            value, least = getattr(self, name), 1e-12 * (name == "forward")
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
