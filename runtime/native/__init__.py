"""Plans without Python: packed files, and the C library that runs them."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .library import (
        ENGINE_FOLDER,
        LIBRARY_NAME,
        SOURCE_FOLDER,
        build_engine_library,
        build_library,
        compile_c,
        library_sources,
        native_library,
    )
    from .packed_plan import PackedPlan, PackedSession
    from .packing import pack_plan, write_packed
    from .records import LAYOUTS, MAGIC, VERSION, is_packed, with_header

__getattr__ = lazy_exports(__name__)
