"""Selection of schedules: evaluation, pruning, hill climbing, the best points."""

from .choose import RANKED_POINTS, Candidate, assess, candidate_of, choose, choose_soon, first_points
from .enumerate import Batch, batches, columns_of, evaluate, places_at, sample_batches, to_schedule
from .hill_climbing import Point, best_points, neighbours
from .prune import is_pruned, least_pul, proven_slower, pul_values, schedule_puls, score
