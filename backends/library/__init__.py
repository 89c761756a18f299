"""Vendors' routines in the place of generated kernels."""

from .routine import DIALECT, Request, Routine, library_kernels

__all__ = ["DIALECT", "Request", "Routine", "library_kernels"]
