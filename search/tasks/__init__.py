"""Tuning tasks: kernels, reference data, sampled candidates, decision records."""

from typing import TYPE_CHECKING

from ...ir import lazy_exports

if TYPE_CHECKING:
    from .data import DeviceNumbers, Reference, addresses, elements, host_dtype, make_reference, poison, span
    from .decisions import GRAPH_ENTRIES, DecisionRecord, Question, decisions_text, question_of
    from .kernels import BundleMember, KernelSpec, launch_name, make_bundle, make_kernel
    from .oracle import MAX_WHOLE_EVALUATIONS, Sample, evaluations
    from .pruning_certificate import PruningCertificate, prove, simple_schedule
    from .sample_points import SampledCandidates, draw, random_points
    from .tuning_task import (
        EARLIER_FORMATS,
        FORMAT,
        TuningTask,
        machine_of,
        measurement_key,
        read_schedule,
        schedule_text,
    )

__getattr__ = lazy_exports(__name__)
