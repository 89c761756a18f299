"""Tuning loop: proposes, builds, checks, times and ranks candidates."""

from .build_queue import BuildQueue
from .earlier_results import ORIGIN_ELSEWHERE, ORIGIN_GUESSED
from .final_ranking import best_known, space_key
from .launches import bundle_members, is_faster, joint_task
from .loop import TuningLoop, ranking_seconds
from .resources import Resources
from .speculative_build import (
    LOWERING_SECONDS,
    SpeculativeBuild,
    build_kernels,
    building_seconds,
    bundle_job,
    kernel_job,
)
from .speculative_search import SpeculativeSearch
from .task_record import Entry, TaskRecord
from .tuner import Tuner, search_deeper

__all__ = [
    "LOWERING_SECONDS",
    "ORIGIN_ELSEWHERE",
    "ORIGIN_GUESSED",
    "BuildQueue",
    "Entry",
    "Resources",
    "SpeculativeBuild",
    "SpeculativeSearch",
    "TaskRecord",
    "Tuner",
    "TuningLoop",
    "best_known",
    "build_kernels",
    "building_seconds",
    "bundle_job",
    "bundle_members",
    "is_faster",
    "joint_task",
    "kernel_job",
    "ranking_seconds",
    "search_deeper",
    "space_key",
]
