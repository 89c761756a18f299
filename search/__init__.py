"""Tuning: strategies, measurement, the tuning database, measured partition search."""

from .database import Trial, database_path, explain, open_database, remove_database, summary_of
from .decisions import DecidedGraph, Question, decisions_text, question_of
from .exchange import export_pack, export_results, import_results, known_answer
from .learned.judgement import Lesson
from .learned.local import local_lesson
from .libraries import ROUTINES
from .libraries.substitute import with_libraries
from .making import PlanningAside
from .memory import seldom_collected
from .problem import machine_of
from .selector import MeasuredSelector
from .session import tuning_session
from .settings import Findings, Settings
from .strategies import STRATEGIES
from .summary import summary_lines, summary_values, tried

__all__ = [
    "ROUTINES",
    "STRATEGIES",
    "DecidedGraph",
    "Findings",
    "Lesson",
    "MeasuredSelector",
    "PlanningAside",
    "Question",
    "Settings",
    "Trial",
    "database_path",
    "decisions_text",
    "explain",
    "export_pack",
    "export_results",
    "import_results",
    "known_answer",
    "local_lesson",
    "machine_of",
    "open_database",
    "question_of",
    "remove_database",
    "seldom_collected",
    "summary_lines",
    "summary_of",
    "summary_values",
    "tried",
    "tuning_session",
    "with_libraries",
]
