"""Tuning: strategies, measurement, the tuning database, measured partition search."""

from .database import Measurement, database_path, explain, explain_question, open_database, remove_database, summary_of
from .decisions import DecisionRecord, Question, decisions_text, question_of
from .exchange import export_pack, export_results, import_database, import_results, known_answer
from .gc_tuning import reduced_garbage_collection
from .learned.evaluation import LearnedModel
from .learned.local import train_locally
from .libraries import ROUTINES
from .libraries.substitute import with_libraries
from .progress import Monitor, make_monitor
from .selector import MeasuredSelector
from .session import tuning_session
from .settings import Findings, Settings
from .speculative_build import PlanningWorkers
from .strategies import STRATEGIES
from .summary import measured_candidates, summary_lines, summary_values
from .tuning_task import machine_of

__all__ = [
    "ROUTINES",
    "STRATEGIES",
    "DecisionRecord",
    "Findings",
    "LearnedModel",
    "MeasuredSelector",
    "Measurement",
    "Monitor",
    "PlanningWorkers",
    "Question",
    "Settings",
    "database_path",
    "decisions_text",
    "explain",
    "explain_question",
    "export_pack",
    "export_results",
    "import_database",
    "import_results",
    "known_answer",
    "machine_of",
    "make_monitor",
    "measured_candidates",
    "open_database",
    "question_of",
    "reduced_garbage_collection",
    "remove_database",
    "summary_lines",
    "summary_of",
    "summary_values",
    "train_locally",
    "tuning_session",
    "with_libraries",
]
