"""Exchange of search results: files, and the packs of this package."""

from .files import export_pack, export_results, import_results
from .packs import PACKED, known_answer, offer_packs, shipped_packs

__all__ = ["PACKED", "export_pack", "export_results", "import_results", "known_answer", "offer_packs", "shipped_packs"]
