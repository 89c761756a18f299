"""Machines: their numbers, matrix instructions and precision policies."""

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
    "ELEMENT",
    "LANE",
    "LANES",
    "MATH_MODES",
    "MMA_INSTRUCTIONS",
    "PRECISIONS",
    "MathMode",
    "MatrixFragment",
    "MmaInstruction",
    "Precision",
    "PrecisionName",
    "Target",
]
