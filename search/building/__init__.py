"""Workers that rank, lower, print and compile candidates."""

from .factory import (
    COMPILE_LIMIT,
    DRAW_LIMIT,
    BuildResult,
    Factory,
    ScoredCandidate,
    Worker,
    build_arguments,
    max_statements_of,
)
from .planning_workers import PlanningWorkers
from .workers import CandidateBuilder, Job, JobResult, Workers
