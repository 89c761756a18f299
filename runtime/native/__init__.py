"""Plans without Python: packed files, and libraries of engines that run them."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .engine_library import ENGINE_FOLDER, build_engine_library
    from .packed_plan import PackedPlan, PackedSession
    from .packing import pack_plan, write_packed

__getattr__ = lazy_exports(__name__)
