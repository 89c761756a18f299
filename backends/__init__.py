"""Execution of kernels: targets, devices, compilers, the reference."""

from typing import TYPE_CHECKING

from ..ir import lazy_exports

if TYPE_CHECKING:
    from .device import Array, Buffer, Device, Launch, MemoryPart, Pointer, Timing, launch_all, middle_mean
    from .devices import (
        AUTOMATIC,
        TargetChoice,
        choose_target,
        find_target,
        open_device,
        open_sequence_launcher,
        open_transfers,
    )
    from .host_memory import require_host_memory
    from .launch_sequence import (
        BlockAddress,
        BoundSequence,
        Copy,
        KernelCall,
        SequenceLauncher,
        SequencePlan,
    )
    from .targets import described_device, described_target, known_targets, target_aliases
    from .transfers import Transfers

__getattr__ = lazy_exports(__name__)
