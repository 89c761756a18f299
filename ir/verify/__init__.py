"""Verifiers: lists of named checks, one list for each level of IR."""

from .graph import MAX_ELEMENTS, Infer, find_cycle, type_problem, verify_graph, violations
from .kernel import kernel_violations
from .program import verify_program
from .segment import verify_group
