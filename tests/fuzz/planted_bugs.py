"""All planted bugs."""

from __future__ import annotations

from . import planted_fusion, planted_guards, planted_kernels, planted_maps, planted_numbers, planted_runs

BUGS = (
    *planted_maps.BUGS,
    *planted_guards.BUGS,
    *planted_kernels.BUGS,
    *planted_fusion.BUGS,
    *planted_numbers.BUGS,
    *planted_runs.BUGS,
)
