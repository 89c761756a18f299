"""Which candidate is best: strategies, measurement, the tuning database, partition by measured times."""

from .database import Trial, database_path, open_database, remove_database
from .exchange import export_results, import_results
from .problem import machine_of
from .selector import MeasuredSelector
from .session import tuning_session
from .settings import Settings
from .substitute import with_libraries
from .summary import summary_lines, summary_values, tried

__all__ = [
    "MeasuredSelector",
    "Settings",
    "Trial",
    "database_path",
    "export_results",
    "import_results",
    "machine_of",
    "open_database",
    "remove_database",
    "summary_lines",
    "summary_values",
    "tried",
    "tuning_session",
    "with_libraries",
]
