"""Operations of ONNX with subgraphs: branches, loops and scans."""

from .structures import STRUCTURES
