"""L2 policy: bytes that are read once are evicted first.

A launch may have a window of memory whose lines are evicted first (`CUaccessPolicyWindow`, compute capability 8.0 and
up). A stream's window applies to its launches, recorded launches too; a node of a graph has its own. A device without
it is only slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .graphs import RECORDING

#: Required driver calls.
REQUIRED_CALLS = ("cuStreamSetAttribute", "cuGraphKernelNodeSetAttribute", "CUaccessPolicyWindow")


@contextmanager
def evict_first_on(stream_handle: int, address: int, nbytes: int) -> Iterator[None]:
    """Context manager: launches on a recorded stream read evict-first bytes."""
    cu = RECORDING.get()
    most = 0 if cu is None else max_window_bytes(cu)
    stream = cu.CUstream(stream_handle) if most else None
    if most:
        _set(cu, stream, address, min(nbytes, most))
    try:
        yield
    finally:
        if most:
            _set(cu, stream, 0, 0)


def set_evict_first(cu: Any, node: Any, address: int, nbytes: int) -> None:
    """Give a kernel node of a graph an evict-first window."""
    if most := max_window_bytes(cu):
        value = set_window(cu, cu.CUkernelNodeAttrValue(), address, min(nbytes, most))
        cu.cuGraphKernelNodeSetAttribute(node, cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)


def max_window_bytes(cu: Any) -> int:
    """Return the largest window in bytes on the current device, or 0."""
    if not all(hasattr(cu, name) for name in REQUIRED_CALLS):
        return 0
    failed, device = cu.cuCtxGetDevice()
    if int(failed):
        return 0
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE
    failed, most = cu.cuDeviceGetAttribute(attribute, device)
    return 0 if int(failed) else int(most)


def set_window(cu: Any, value: Any, address: int, nbytes: int) -> Any:
    """Return an attribute with an evict-first window; none for zero bytes."""
    found = cu.CUaccessPolicyWindow()
    found.num_bytes = nbytes
    if nbytes:
        found.base_ptr = address
    found.hitRatio = 1.0
    found.hitProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
    found.missProp = cu.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
    value.accessPolicyWindow = found
    return value


def _set(cu: Any, stream: Any, address: int, nbytes: int) -> None:
    value = set_window(cu, cu.CUstreamAttrValue(), address, nbytes)
    cu.cuStreamSetAttribute(stream, cu.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)
