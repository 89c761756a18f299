"""Inspection of results of stages: listings, reports and checks."""

from .fusion_report import fusion_report
from .listing import (
    parameters,
    show_algorithms,
    show_blocks,
    show_launches,
    show_partition,
    show_programs,
    show_schedules,
    show_sources,
    show_threads,
    show_updates,
    show_views,
)
from .stage_verifiers import (
    verify_algorithms,
    verify_blocks,
    verify_nothing,
    verify_order,
    verify_partition,
    verify_refined,
    verify_schedules,
    verify_statements,
    verify_threads,
    verify_types,
)
