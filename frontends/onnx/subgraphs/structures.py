"""Table of structured ONNX nodes: subgraphs and lists of values."""

from ..importer import Structures
from .branch import take_branch
from .loop import SEQUENCE_OPERATIONS, import_loop, read_sequence
from .scan import import_scan

STRUCTURES = Structures(
    {
        **dict.fromkeys(sorted(SEQUENCE_OPERATIONS), read_sequence),
        "If": take_branch,
        "Loop": import_loop,
        "Scan": import_scan,
    },
    read_sequence,
)
