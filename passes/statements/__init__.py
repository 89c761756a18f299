"""Statements of a graph: units, def-use index, patterns, one rewriter."""

from .def_use import DefUse, axis_values, is_plain
from .gather_to_slice import (
    bypass_copies,
    fold_gathers,
    replace_known_tables,
    replace_stepping_tables,
    tensors_looked_up,
)
from .hoisted_factors import guard_factors, hoist_factors
from .inline import (
    FusionError,
    Inliner,
    apply_guards,
    constant,
    holds_integers,
    issue_slots,
    node_count,
    split_argument_reduction,
)
from .integer_facts import IntegerFact, fact_of_array, integer_facts
from .lone_pieces import separate_lone_pieces
from .match import DefinedElement, Match
from .patterns import (
    Converted,
    Factor,
    Guarded,
    anything,
    converted_element,
    element,
    fn,
    number,
    pointwise,
    read_of,
    reduction,
)
from .prefix_scan import divide_scans, match_scan
from .rewriter import (
    Edit,
    NewUnit,
    RewriteRule,
    apply,
    external_reads,
    rewrite,
    rewrite_program,
    rewritten,
)
from .scatters import index_tests, make_scatters_atomic, make_scatters_deterministic
from .single_terms import single_term
from .sorts import MAX_NETWORK_ROW, RowSort, longest_sorted_row, mark_sorts, match_sort
from .stride_residues import split_residues
from .units import Programs, Repeat, Unit
