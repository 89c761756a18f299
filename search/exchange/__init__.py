"""Exchange of search results: files, and the packs of this package."""

from .files import export_pack, export_results, import_database, import_results
from .packs import PACK_DIALECT, known_answer, known_answers, offer_packs, shipped_packs

__all__ = [
    "PACK_DIALECT",
    "export_pack",
    "export_results",
    "import_database",
    "import_results",
    "known_answer",
    "known_answers",
    "offer_packs",
    "shipped_packs",
]
