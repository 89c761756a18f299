"""Models of quantised checkpoints, their weights packed: GGUF and compressed-tensors."""

from .gguf_blocks import BLOCK_FORMATS, BlockFormat, split_blocks
from .load import load_checkpoint
from .packed_layers import PackedEmbedding, PackedLinear
from .packed_matrix import PackedMatrix
from .schemes import pack_layers
