"""Where the time of a network goes, as section 7.3 of DeepCuts divides it.

A kernel is *complex* where it sums products of tensors (convolutions, matrix products) and *simple* otherwise; either
is fused where it computes several operations. Depthwise convolutions count as simple there (Table 2): they sum as many
products as a window has places, so a complex kernel is one that sums more than that. What a library's kernel computes
is read off its name; no kernel of PyTorch's counts as fused.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from cuts.compile import CompiledPlan
from cuts.ir import FusedGroup, is_contraction, parse_ir

#: Places of the largest window of a depthwise convolution in these networks.
WINDOW = 25
#: What the names of kernels of cuBLAS, cuDNN and PyTorch hold that convolve, multiply matrices or attend.
COMPLEX = ("gemm", "gemv", "conv", "winograd", "xmma", "cutlass", "fmha", "attention", "dgrad", "fprop", "dot_kernel",
           "rnn", "lstm", "gru", "splitk")  # fmt: skip
DEPTHWISE = ("depthwise", "dgrad2d_grouped")


def of_plan(plan: CompiledPlan) -> dict[str, float]:
    """Return the microseconds of each kind of kernel of a plan that has run."""
    found: dict[str, float] = {}
    times = plan.session.time_steps(repeats=20)
    for group, timing in zip(plan.plan.groups, times, strict=True):
        kind = "complex" if _is_complex(str(group.get("form", ""))) else "simple"
        nodes = group.get("nodes")
        kind += " (fusion)" if isinstance(nodes, (list, tuple)) and len(nodes) > 1 else ""
        turns = group.get("turns", 1)
        found[kind] = found.get(kind, 0.0) + timing.median * 1e6 * (turns if isinstance(turns, int) else 1)
    return found


def _is_complex(text: str) -> bool:
    """Whether a group, or one of several, sums more products than a window has places."""
    groups = [parse_ir(part + "\n}", "<group>") for part in text.split("\n}\n") if part.strip()]
    return any(_multiplies(group) for group in groups if isinstance(group, FusedGroup))


def _multiplies(group: FusedGroup) -> bool:
    for segment in group.segments:
        names = [r.name for r in segment.reductions]
        if any(is_contraction(r, names) and prod(v.extent for v in r.reduce) > WINDOW for r in segment.reductions):
            return True
    return False


def of_profile(torch: Any, call: Callable[[], object]) -> dict[str, float]:
    """Return the microseconds of each kind of kernel of a call of PyTorch."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    for event in profile.events():
        name = event.name.lower()
        taken = float(event.device_time)
        if taken > 0.0:
            matrix = any(part in name for part in COMPLEX) and not any(part in name for part in DEPTHWISE)
            kind = "complex" if matrix else "simple"
            found[kind] = found.get(kind, 0.0) + taken
    return found
