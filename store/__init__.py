"""The store: results that later compilations use again, on any host.

*Entries* are files under keys: plans, signatures of captured graphs, cubins, latency models, ceilings. *Rows* are
measurements and decisions in one SQLite file. Programs of PoCL and files for diagnosis lie beside them and are counted
and evicted with the entries.
"""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .archive import EntryCounts, export_store, import_store
    from .earlier import take_earlier
    from .entries import EntryStore
    from .eviction import clear_store, store_info
    from .explain import explain_entries, explain_facts, explain_key
    from .folder import cache_root, create_private_folder
    from .keys import Facts, Key, describe, digest, digest_parts, field_facts
    from .rows import RowFile, is_row_file
    from .source_digest import compiler_digest, model_digest

__getattr__ = lazy_exports(__name__)
