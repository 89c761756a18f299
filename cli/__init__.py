"""Command line: commands, options and printed results."""

from .main import main, main_of_module

__all__ = ["main", "main_of_module"]
