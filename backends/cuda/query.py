"""Queries of a CUDA device: its numbers as a target."""

from __future__ import annotations

from functools import cache

from attrs import evolve

from ...ir import Target, UsageError
from ..ceilings import calibrate_target, load_ceilings
from ..targets import DEFAULT_CUDA, described_device, described_target
from .driver import driver

#: fp32 lanes of one SM by compute capability; the architectures of the CUDA C++ Programming Guide's throughput table.
_LANES = {"5": 128, "6.0": 64, "6": 128, "7": 64, "8.0": 64, "8": 128, "9": 128, "10": 128, "12": 128}


@cache
def query_target() -> Target:
    """Describe the current device.

    Queried attributes and measured ceilings replace those of its description, or of its architecture's.
    """
    device = driver()
    ask = device.attribute
    name, (major, minor) = device.name(), device.capability()
    arch = f"sm_{major}{minor}"
    try:
        base = described_device(name, arch)
    except UsageError:
        base = evolve(described_target(DEFAULT_CUDA if major >= 9 else "cuda:v100"), arch=arch, async_copy=major >= 8)

    clock = ask("CLOCK_RATE", int(base.clock / 1e3)) * 1e3
    sms = ask("MULTIPROCESSOR_COUNT", base.NUM_SM)
    lanes = _LANES.get(f"{major}.{minor}", _LANES.get(str(major), 128))
    # Two transfers per memory clock; where the driver no longer reports it, the described bandwidth stands.
    bandwidth = 2 * ask("MEMORY_CLOCK_RATE", 0) * 1e3 * ask("GLOBAL_MEMORY_BUS_WIDTH", 0) / 8
    warp = ask("WARP_SIZE", base.warp_size)
    described = evolve(
        base,
        name=name,
        arch=arch,
        NUM_SM=sms,
        clock=clock,
        PERF_peak=sms * lanes * 2 * clock,
        BW_global=max(bandwidth, base.BW_global) if sms == base.NUM_SM else bandwidth or base.BW_global,
        MAX_shared=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", ask("MAX_SHARED_MEMORY_PER_BLOCK", base.MAX_shared)),
        MAX_thread=ask("MAX_THREADS_PER_BLOCK", base.MAX_thread),
        shared_per_sm=ask("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", base.shared_per_sm),
        registers_per_sm=ask("MAX_REGISTERS_PER_MULTIPROCESSOR", base.registers_per_sm),
        warps_per_sm=ask("MAX_THREADS_PER_MULTIPROCESSOR", base.warps_per_sm * warp) // warp,
        warp_size=warp,
        l2_bytes=ask("L2_CACHE_SIZE", base.l2_bytes),
        # The ports of all SMs could take twice the bandwidth of a large chip's cache; the measured one counts. A chip
        # of as many SMs is the described one, with any memory.
        l2_bandwidth=base.l2_bandwidth if sms == base.NUM_SM else 64 * sms * clock,
    )
    return calibrate_target(described, load_ceilings(described.name))
