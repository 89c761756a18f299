"""Machines: their numbers, their instructions and precision policies."""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_exports

if TYPE_CHECKING:
    from .cost_coefficients import BoundCoefficients, CoreCoefficients, CostCoefficients
    from .instructions import (
        COPIES,
        INSTRUCTIONS,
        LANE_PRODUCTS,
        MATRIX_LOADS,
        MATRIX_ROWS,
        MATRIX_WORDS,
        MIN_COPY_BYTES,
        PACKED_CONVERSIONS,
        ROW_BYTES,
        UNPACKED_BITS,
        UNPACKED_CONVERSIONS,
        UNPACKED_PAIRS,
        VECTOR_ADDITIONS,
        WORD_EXTREMES,
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
        WARPGROUP,
        WARPGROUP_THREAD,
        MathMode,
        MatrixFragment,
        MmaInstruction,
        promotion_interval,
    )
    from .policy import POLICIES, PolicyName, check_policy, with_policy
    from .precision import PRECISIONS, Precision, PrecisionName
    from .shared_matrices import HALF_BYTES, SWIZZLE_PERIOD, SWIZZLES, SharedMatrixLayout
    from .target import Target
    from .target_precisions import check_precision, precisions_of
    from .tensor_maps import BOX_BYTES, CORNER_BITS, MAP_UNIT_BYTES, MAX_MAP_DIMS, TensorMap

__getattr__ = lazy_exports(__name__)
