"""The command line: what a user types, and what is printed."""

from .main import main, main_of_module

__all__ = ["main", "main_of_module"]
