"""Routines of vendors' libraries as alternatives to generated kernels."""

from .routine import (
    DIALECT,
    Request,
    Routine,
    RoutineError,
    installed_libraries,
    is_library_computation,
    library_kernels,
    missing_library,
)
