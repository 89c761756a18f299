"""The runner of plans in C: sources, interface, and records."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .c_compiler import LIBRARY_NAME, LIBRARY_OPTIONS
    from .c_interface import (
        INPUT,
        NO_DEVICE,
        OUTPUT,
        STATE,
        NativeError,
        OptionsStruct,
        PlanInfoStruct,
        TensorInfoStruct,
        check_status,
        make_options,
        open_library,
        untyped_call,
    )
    from .launch_records import add_copy, add_info, add_kernels, add_launches, pack_sequence
    from .library import (
        SOURCE_FOLDER,
        begin_native_library,
        build_library,
        compile_c,
        has_native_library,
        library_origin,
        library_sources,
        native_library,
    )
    from .records import DIALECTS, LAYOUTS, MAGIC, NONE, VERSION, RecordTables, is_packed, read_dialect, with_header

__getattr__ = lazy_exports(__name__)
