"""Plans without Python: packed files, and the C library that runs them."""

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
from .packed_plan import PackedPlan, PackedSession, is_packed
from .packing import pack_plan, write_packed
from .records import LAYOUTS, MAGIC, VERSION, with_header
