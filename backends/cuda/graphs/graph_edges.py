"""Driver calls with edge data of CUDA graphs, for any bindings.

The bindings for CUDA 12 have them under versioned names, beside older calls without edge data; those for CUDA 13 have
no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: First version of the bindings whose unversioned names take edge data, and first driver version with such calls.
MIN_UNVERSIONED_CUDA, MIN_EDGE_DATA_DRIVER = 13000, 12030
#: Suffixes of the newer of two calls of one name.
VERSION_SUFFIXES = ("_v3", "_v2")


def calls_with_data(cu: Any, names: Iterable[str]) -> Mapping[str, Callable[..., tuple[Any, ...]]] | None:
    """Return calls by their plain names.

    None where the bindings or the driver lack one of them.
    """
    if not hasattr(cu, "CUgraphEdgeData") or int(cu.cuDriverGetVersion()[1]) < MIN_EDGE_DATA_DRIVER:
        return None
    found = {name: _newest(cu, name) for name in names}
    known = {name: call for name, call in found.items() if call is not None}
    return known if len(known) == len(found) else None


def _newest(cu: Any, name: str) -> Callable[..., tuple[Any, ...]] | None:
    plain = ("",) if int(cu.CUDA_VERSION) >= MIN_UNVERSIONED_CUDA else ()
    return next(
        (getattr(cu, name + version) for version in (*VERSION_SUFFIXES, *plain) if hasattr(cu, name + version)), None
    )
