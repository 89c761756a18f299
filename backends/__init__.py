"""Execution of kernels: targets, devices, the cache of compiled code, the reference."""

from .cache import KernelStore, cache_info, cache_key, cache_root, clear_cache, file_size, private_folder
from .chains import BlockPlace, Called, Chain, ChainPlan, Chains, Copied
from .device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing, launch_all, trimmed_mean
from .devices import find_target, open_chains, open_device, open_transfers
from .host_memory import require_host_memory
from .run_reference import accumulations, run_reference
from .targets import known_targets, target_aliases
from .this_version import compiler_digest, model_digest
from .transfers import Transfers

__all__ = [
    "Array",
    "BlockPlace",
    "Buffer",
    "Called",
    "Chain",
    "ChainPlan",
    "Chains",
    "Copied",
    "Device",
    "KernelStore",
    "Launch",
    "MemoryPart",
    "Pointer",
    "Timing",
    "Transfers",
    "accumulations",
    "cache_info",
    "cache_key",
    "cache_root",
    "clear_cache",
    "compiler_digest",
    "file_size",
    "find_target",
    "known_targets",
    "launch_all",
    "model_digest",
    "open_chains",
    "open_device",
    "open_transfers",
    "private_folder",
    "require_host_memory",
    "run_reference",
    "target_aliases",
    "trimmed_mean",
]
