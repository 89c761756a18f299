"""Operations derived from declarations.

Shapes and statements (`language`), gradients (`gradient`), reference, costs, manual.
"""

from .amplification import amplification
from .costs import program_costs
from .fold import Folder
from .index_checks import Finding, index_program
from .language.inference import Instances
from .language.instantiate import Instance, OpDecl
from .language.registry import Registry
from .linear import LinearCombiner
from .manual import entry, entry_values, manual
from .reference import evaluate, evaluate_graph
from .repetition import Along, Repetition, declare_repetition, turn_of

__all__ = [
    "Along",
    "Finding",
    "Folder",
    "Instance",
    "Instances",
    "LinearCombiner",
    "OpDecl",
    "Registry",
    "Repetition",
    "amplification",
    "declare_repetition",
    "entry",
    "entry_values",
    "evaluate",
    "evaluate_graph",
    "index_program",
    "manual",
    "program_costs",
    "turn_of",
]
