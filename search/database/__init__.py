"""Tuning database: a SQLite file with all measurements, failures included.

A *problem* is a kernel on a machine (`TuningTask.description`), a *trial* one schedule of it. Several processes may
share the file (WAL). A damaged file is set aside and a new one begun, with a notice: results can be measured again.
Results of other machines are hints only.
"""

from .exchange import export_pack, export_results, import_database, import_results
from .packs import PACK_DIALECT, known_answer, known_answers, offer_packs, shipped_packs
from .records import OUTCOMES, KernelTime, Measurement, Winner
from .report import explain, explain_question, summary_of
from .tables import Database
from .user import FILE, database_path, open_database, remove_database
