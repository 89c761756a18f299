"""All planted bugs."""

from __future__ import annotations

from . import planted_fusion, planted_guards, planted_kernels, planted_maps

BUGS = (*planted_maps.BUGS, *planted_guards.BUGS, *planted_kernels.BUGS, *planted_fusion.BUGS)
