"""Operations derived from declarations.

Shapes and statements (`language`), gradients (`gradient`), reference, costs, manual.
"""

from .costs import program_costs
from .empty_results import warn_of_empty_results
from .fold import Folder
from .index_checks import Finding, index_program
from .language.inference import Instances
from .language.instantiate import Instance, OpDecl
from .language.registry import Registry
from .linear import LinearCombiner
from .loop_rolling import RolledLoop, SequenceAxis, declare_loop, loop_body
from .manual import entry, entry_values, manual
from .reference import evaluate, evaluate_graph
