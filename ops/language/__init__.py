"""The declaration language: syntax, checks, binding, inference.

It leads from the text of a declaration to the program of an operation at given shapes.
"""

from .canonical import canonicalise, live_statements, split_axis, unused_name
from .checks import CLASSES, RESERVED_NAMES, children
from .classify import AxisClass, classify_axes, is_complex
from .evaluation import BUILTINS
from .inference import Instances, Vocabulary
from .instantiate import Instance, OpDecl
from .registry import Registry
from .text import print_expression, print_item, provide_parser_cache, syntax
from .unroll import unroll_loops
from .walked_recurrences import walk_recurrences
