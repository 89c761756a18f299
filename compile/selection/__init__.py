"""Choice of a plan: cached ones, validation, side-by-side launches."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .cached_decisions import compile_measured, decision_key, has_cached_decisions
    from .concurrent_launches import select_launch_form
    from .plan_cache import PlanCache, decisions_digest, find_plan, plan_key, target_facts
    from .plan_selection import CandidatePlan, CandidatePlans, select_library_calls, time_nothing
    from .plan_validation import PlanValidator

__getattr__ = lazy_exports(__name__)
