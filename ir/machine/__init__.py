"""Machines: their numbers, their instructions and precision policies."""

from .instructions import (
    COPIES,
    INSTRUCTIONS,
    MATRIX_LOADS,
    MATRIX_ROWS,
    MATRIX_WORDS,
    MIN_COPY_BYTES,
    ROW_BYTES,
    CopyInstruction,
    MatrixLoadInstruction,
    copy_row,
    matrix_load_row,
)
from .matrix_instructions import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ELEMENT,
    LANE,
    LANES,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    MathMode,
    MatrixFragment,
    MmaInstruction,
)
from .precision import PRECISIONS, Precision, PrecisionName
from .target import Target

__all__ = [
    "ACCUMULATOR_THREADS",
    "ACCUMULATOR_VECTOR",
    "COPIES",
    "ELEMENT",
    "INSTRUCTIONS",
    "LANE",
    "LANES",
    "MATH_MODES",
    "MATRIX_LOADS",
    "MATRIX_ROWS",
    "MATRIX_WORDS",
    "MIN_COPY_BYTES",
    "MMA_INSTRUCTIONS",
    "PRECISIONS",
    "ROW_BYTES",
    "CopyInstruction",
    "MathMode",
    "MatrixFragment",
    "MatrixLoadInstruction",
    "MmaInstruction",
    "Precision",
    "PrecisionName",
    "Target",
    "copy_row",
    "matrix_load_row",
]
