"""Choice of a plan: cached ones, validation, side-by-side launches."""

from .cached_decisions import compile_measured, decision_key, decisions_digest, has_cached_decisions, prints_passes
from .concurrent_launches import select_launch_form
from .plan_cache import PlanCache, find_plan, plan_key, target_facts
from .plan_selection import CandidatePlan, CandidatePlans, select_library_calls, time_nothing
from .plan_validation import PlanValidator

__all__ = [
    "CandidatePlan",
    "CandidatePlans",
    "PlanCache",
    "PlanValidator",
    "compile_measured",
    "decision_key",
    "decisions_digest",
    "find_plan",
    "has_cached_decisions",
    "plan_key",
    "prints_passes",
    "select_launch_form",
    "select_library_calls",
    "target_facts",
    "time_nothing",
]
