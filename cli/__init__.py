"""Command line: commands, their options, and the results that they print."""

from .main import main, main_of_module
