"""Space of a group's schedules: enumeration, pruning, hill climbing and choice."""

from .atom_structures import atom_structures, computed_by_atoms
from .check_schedules import check_schedule
from .choose import FIRST, Candidate, assess, candidate_of, choose, choose_soon, first_points
from .climb import Point, best_points, neighbours
from .enumerate import Batch, batches, columns_at, columns_of, evaluate, sampled, schedule_of, to_schedule
from .legal_points import features_of, geometry_of
from .prune import proven_slower, score
from .space import Space, make_space, segment_structures

__all__ = [
    "FIRST",
    "Batch",
    "Candidate",
    "Point",
    "Space",
    "assess",
    "atom_structures",
    "batches",
    "best_points",
    "candidate_of",
    "check_schedule",
    "choose",
    "choose_soon",
    "columns_at",
    "columns_of",
    "computed_by_atoms",
    "evaluate",
    "features_of",
    "first_points",
    "geometry_of",
    "make_space",
    "neighbours",
    "proven_slower",
    "sampled",
    "schedule_of",
    "score",
    "segment_structures",
    "to_schedule",
]
