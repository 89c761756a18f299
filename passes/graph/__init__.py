"""Graph passes: canonical form, gradients, losses, index checks."""

from .attach_loss import with_loss
from .base import Pass, remembered_passes, run_passes
from .canonicalise import Canonicalise, canonical_passes
from .drop_repetition import DropRepetition
from .gradient import differentiate_graph
from .guard_indices import Checked, check_indices
from .precision import LowerPrecision, is_contraction
from .recompute import KeepOrCompute
from .rewrite import fresh_name, prune

__all__ = [
    "Canonicalise",
    "Checked",
    "DropRepetition",
    "KeepOrCompute",
    "LowerPrecision",
    "Pass",
    "canonical_passes",
    "check_indices",
    "differentiate_graph",
    "fresh_name",
    "is_contraction",
    "prune",
    "remembered_passes",
    "run_passes",
    "with_loss",
]
