"""Execution of kernels: targets, devices, the cache of compiled code, the reference."""

from .cache import KernelStore, cache_info, cache_key, cache_root, clear_cache, create_private_folder, file_size
from .device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing, launch_all, middle_mean
from .devices import find_target, open_device, open_sequence_launcher, open_transfers
from .host_memory import require_host_memory
from .launch_sequence import BlockAddress, Copy, KernelCall, LaunchSequence, SequenceLauncher, SequencePlan
from .source_digest import compiler_digest, model_digest
from .targets import known_targets, target_aliases
from .transfers import Transfers

__all__ = [
    "Array",
    "BlockAddress",
    "Buffer",
    "Copy",
    "Device",
    "KernelCall",
    "KernelStore",
    "Launch",
    "LaunchSequence",
    "MemoryPart",
    "Pointer",
    "SequenceLauncher",
    "SequencePlan",
    "Timing",
    "Transfers",
    "cache_info",
    "cache_key",
    "cache_root",
    "clear_cache",
    "compiler_digest",
    "create_private_folder",
    "file_size",
    "find_target",
    "known_targets",
    "launch_all",
    "middle_mean",
    "model_digest",
    "open_device",
    "open_sequence_launcher",
    "open_transfers",
    "require_host_memory",
    "target_aliases",
]
