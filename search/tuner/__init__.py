"""Tuning loop: proposes, builds, checks, times and ranks candidates."""

from .build_queue import BuildQueue
from .deeper_search import search_deeper
from .earlier_results import ORIGIN_ELSEWHERE, ORIGIN_GUESSED, learned_order
from .executor import SearchExecutor
from .final_ranking import best_known, space_key
from .launches import bundle_members, is_faster, joint_task
from .loop import TuningLoop
from .overtime_ranking import ranking_end
from .proposals import batch_size
from .task_record import Entry, TaskRecord
from .tuner import Tuner
