"""Tuning: strategies, measurement, the tuning database, measured partition search."""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .analysis import Monitor, make_monitor
    from .building import PlanningWorkers
    from .database import (
        Measurement,
        database_path,
        explain,
        explain_question,
        export_pack,
        export_results,
        import_database,
        import_results,
        known_answer,
        known_answers,
        open_database,
        remove_database,
        summary_of,
    )
    from .findings import Findings, SearchOutcome
    from .learned.evaluation import LearnedModel
    from .learned.local import train_locally
    from .library_routines import ROUTINES
    from .library_substitutes import with_libraries
    from .opening import tuning_session
    from .processes import reduced_garbage_collection
    from .session import RunMode, TuningSession
    from .settings import Settings
    from .strategies import STRATEGIES
    from .summary import measured_candidates, summary_lines, summary_values
    from .tasks import DecisionRecord, Question, decisions_text, machine_of, question_of
    from .trace import HERE, trace_events

__getattr__ = lazy_exports(__name__)
