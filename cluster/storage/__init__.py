"""Storage of layers: files, buffers, disks and moves between them."""

from .bound_plan import BoundPlan, intermediate_bytes
from .buffers import Arena, CountedBuffer, HostPool, Slots
from .checkpoints import TensorCheckpoint, write_checkpoint
from .disk import PIECE_BYTES, Disk
from .layer_files import layout, reserve, round_to_pages, storage_error
from .mapped_files import MappedFiles
from .mover import Move, Mover
from .store import LayerStore, open_store, state_kinds
