"""Bytes that pass through the L2 cache: a kernel reads them, and the next time they are read all else has been there.

A launch may have a window of memory whose lines are the first to be driven out (`CUaccessPolicyWindow`, compute
capability 8.0 and up). A stream has one that what is launched on it takes over, recorded launches too; a node of a
graph has its own. What a device lacks is left out: it costs time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .graph import RECORDING

#: The driver's calls that it takes.
NEEDED = ("cuStreamSetAttribute", "cuGraphKernelNodeSetAttribute", "CUaccessPolicyWindow")


@contextmanager
def passing_on(stream_handle: int, address: int, nbytes: int) -> Iterator[None]:
    """Let what is launched on a stream that is recorded read some bytes that pass through the cache."""
    cu = RECORDING.get()
    most = 0 if cu is None else most_bytes(cu)
    stream = cu.CUstream(stream_handle) if most else None
    if most:
        _set(cu, stream, address, min(nbytes, most))
    try:
        yield
    finally:
        if most:
            _set(cu, stream, 0, 0)


def pass_through(cu: Any, node: Any, address: int, nbytes: int) -> None:
    """Let a kernel's node of a graph read some bytes that pass through the cache."""
    if most := most_bytes(cu):
        value = window(cu, cu.CUkernelNodeAttrValue(), address, min(nbytes, most))
        cu.cuGraphKernelNodeSetAttribute(node, cu.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)


def most_bytes(cu: Any) -> int:
    """Return the most bytes of a window on the current device, 0 where it has none."""
    if not all(hasattr(cu, name) for name in NEEDED):
        return 0
    failed, device = cu.cuCtxGetDevice()
    if int(failed):
        return 0
    attribute = cu.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE
    failed, most = cu.cuDeviceGetAttribute(attribute, device)
    return 0 if int(failed) else int(most)


def window(cu: Any, value: Any, address: int, nbytes: int) -> Any:
    """Return an attribute with a window whose lines are the first to be driven out; of no bytes, one without."""
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
    value = window(cu, cu.CUstreamAttrValue(), address, nbytes)
    cu.cuStreamSetAttribute(stream, cu.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)
