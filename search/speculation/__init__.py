"""Speculation: idle workers build kernels that are likely to be needed."""

from .plan_builds import LOWERING_SECONDS, build_kernels, building_seconds, bundle_job, kernel_job
from .speculative_build import SpeculativeBuild
