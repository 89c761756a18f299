"""Instruction selection: nodes of thread-level kernels become instructions of a dialect."""

from .select import select_instructions
