"""Routines of vendors' libraries as alternatives to generated kernels."""

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
