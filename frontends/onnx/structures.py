"""The nodes of ONNX that are about other nodes or about lists of values, and what imports each."""

from .branch import take_branch
from .importer import Structures
from .loop import SEQUENCES, read_sequence, unroll_loop
from .scan import unroll_scan

STRUCTURES = Structures(
    {**dict.fromkeys(sorted(SEQUENCES), read_sequence), "If": take_branch, "Loop": unroll_loop, "Scan": unroll_scan},
    read_sequence,
)
