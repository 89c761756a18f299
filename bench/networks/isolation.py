"""Workloads in processes of their own.

A hang or a crash costs one row, and memory is free again after each.

A process imports PyTorch, makes the model and exports it on the CPU when it starts, which is while another one still
measures peers; the GPU is touched by one process at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from time import monotonic

from attrs import define, field
from cuts.bench.tools.records import Row
from cuts.ir import CutsError
from cuts.search.processes.child import Child, ChildLost

from .ledger import parse_workload
from .models import ModelWorkload, Task
from .systems import EXPORT_SYSTEMS, LEAVING, SYSTEMS, ModelCase, run

#: Seconds that a row may take beyond its expected time.
PATIENCE = 60.0


class PairedRun:
    """Workload that systems are measured on, hosted by a child process."""

    def __init__(self, text: str, budget: float, exported: bool) -> None:
        workload = parse_workload(text)
        self.case = ModelCase(workload, workload.model.make(workload.batch, False), import_module("torch"), budget)
        if exported:
            _ = self.case.program

    def measure(self, system: str) -> Row:
        """Return a system's measurement, or the reason of its failure."""
        try:
            return run(self.case, system)
        except (RuntimeError, CutsError) as error:  # of one system; the others go on
            return {"failure": (str(error).splitlines() or [type(error).__name__])[0][:300]}
        finally:
            self.case.torch.cuda.empty_cache()

    def gpu(self) -> str:
        """Return the name of the GPU."""
        return str(self.case.torch.cuda.get_device_name())


@define
class Bout:
    """Workload with its remaining systems."""

    workload: ModelWorkload
    systems: Sequence[str]
    budget: float
    child: Child = field(init=False)

    def __attrs_post_init__(self) -> None:
        exported = self.workload.task == "inference" and any(system in EXPORT_SYSTEMS for system in self.systems)
        self.child = Child(f"{__name__}:PairedRun", text_of(self.workload), self.budget, exported)

    def expected_seconds(self, system: str) -> float:
        """Return the seconds that a system needs about."""
        return SYSTEMS[system].seconds(self.workload.task, self.budget)

    def measure(self, system: str, limit: float) -> Row:
        """Return a system's row.

        A system beyond its time limit ends with its process, and the next system gets a new one.
        """
        start = monotonic()
        try:
            found: Row = self.child.call(min(limit, self.expected_seconds(system) + PATIENCE), "measure", system)
        except ChildLost as lost:
            found = {"failure": str(lost)}
        except CutsError as error:  # the model could not be made
            found = {"failure": error.message.splitlines()[0][:300]}
        if system in LEAVING:
            self.child.close()
        return found | {"took": round(monotonic() - start, 1)}


def text_of(workload: ModelWorkload) -> str:
    """Return a workload as `parse_workload` reads it."""
    task: Task = workload.task
    return f"{workload.model.name}:{'training' if task == 'training' else workload.batch}:{workload.precision}".lower()
