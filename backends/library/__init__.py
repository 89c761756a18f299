"""Vendors' routines in the place of generated kernels."""

from .routine import (
    DIALECT,
    Request,
    Routine,
    RoutineError,
    computed_by_some,
    installed_libraries,
    library_kernels,
    missing_library,
)

__all__ = [
    "DIALECT",
    "Request",
    "Routine",
    "RoutineError",
    "computed_by_some",
    "installed_libraries",
    "library_kernels",
    "missing_library",
]
