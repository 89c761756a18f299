"""Measured ceilings of a device, stored, and applied to a target.

Results are stored per device in the cache folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import cattrs
from attrs import asdict, evolve, fields, frozen

from ...ir import Target, atomic_write
from ...store import cache_root, digest_parts

#: Version of the kernels below: incremented where a measured quantity changes.
FORMAT = 3
#: Ratio of assumed to measured rates of a device.
HEADROOM = 1.03


@frozen
class Ceilings:
    """Ceilings of a device: rates per second, seconds, and clocks."""

    device: str
    copy_bandwidth: float  #: bytes/s read and written by a copy in global memory
    read_bandwidth: float  #: bytes/s read from global memory
    l2_bandwidth: float  #: bytes/s read from the L2 cache
    shared_bandwidth: float  #: bytes per clock and SM read from shared memory
    fma_rate: float  #: fp32 FLOP/s of multiply-adds
    clock: float  #: highest clock seen, Hz
    launch_time: float  #: seconds of an empty kernel inside a graph
    barrier_clocks: float  #: clocks of a block-wide barrier
    dram_latency: float  #: seconds of a dependent load from global memory
    first_load: (
        float  #: seconds that a kernel takes beyond an empty one to load a line that no cache holds, and to store it
    )
    atoms: Mapping[str, float]  #: clocks of a matrix instruction on the tensor core of a quarter SM, by name
    format: int = FORMAT


def calibrate_target(target: Target, ceilings: Ceilings | None) -> Target:
    """Return the target with measured ceilings instead of described ones.

    Latencies shrink by the head-room, rates grow.
    """
    if ceilings is None:
        return target
    return evolve(
        target,
        PERF_peak=HEADROOM * ceilings.fma_rate,
        BW_global=HEADROOM * max(ceilings.copy_bandwidth, ceilings.read_bandwidth),
        l2_bandwidth=HEADROOM * ceilings.l2_bandwidth,
        shared_bandwidth=min(target.shared_bandwidth, HEADROOM * ceilings.shared_bandwidth),
        clock=max(target.clock, ceilings.clock),
        launch_time=ceilings.launch_time / HEADROOM,
        barrier_clocks=ceilings.barrier_clocks / HEADROOM,
        dram_latency=ceilings.dram_latency / HEADROOM,
        first_load=ceilings.first_load / HEADROOM,
        atoms=tuple((name, ceilings.atoms.get(name, clocks) / HEADROOM) for name, clocks in target.atoms),
    )


def save_ceilings(ceilings: Ceilings) -> Path | None:
    """Store ceilings for later sessions; None where caching is off.

    Raises `UsageError` where they cannot be written.
    """
    path = _path(ceilings.device)
    if path is not None:
        with atomic_write(path, "ceilings") as draft:
            draft.write_text(json.dumps(asdict(ceilings), indent=1) + "\n", encoding="utf-8")
    return path


def load_ceilings(device: str) -> Ceilings | None:
    """Return the stored ceilings of a device.

    None where it was not calibrated, or by another version.
    """
    path = _path(device)
    try:
        found = cattrs.structure(json.loads(path.read_bytes()), Ceilings) if path is not None else None
    except (OSError, ValueError, KeyError, TypeError, cattrs.BaseValidationError):
        return None
    return (
        found if found is not None and found.format == FORMAT and found.device == device and _plausible(found) else None
    )


def _plausible(ceilings: Ceilings) -> bool:
    values = [getattr(ceilings, f.name) for f in fields(Ceilings) if f.type in (float, "float")]
    values += ceilings.atoms.values()
    return all(isinstance(v, float) and 0.0 < v < float("inf") for v in values)


def _path(device: str) -> Path | None:
    root = cache_root()
    return None if root is None else root / f"ceilings-{digest_parts([device])[:16]}.json"
