"""Results of searches that travel: files of them, and the packs that come with the package."""

from .files import export_pack, export_results, import_results
from .packs import PACKED, known_answer, offer_packs, shipped_packs

__all__ = ["PACKED", "export_pack", "export_results", "import_results", "known_answer", "offer_packs", "shipped_packs"]
