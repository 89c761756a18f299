"""Choice of a plan: cached ones, validation, side-by-side launches."""

from .cached_decisions import compile_measured, decision_key, decisions_digest, has_cached_decisions, prints_passes
from .concurrent_launches import select_launch_form
from .plan_cache import PlanCache, find_plan, plan_key, target_facts
from .plan_selection import CandidatePlan, CandidatePlans, select_library_calls, time_nothing
from .plan_validation import PlanValidator
