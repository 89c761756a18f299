"""Counts of a run of the fuzzer.

They cover graphs, nodes, kernels, findings, and the machines of the kernels.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from attrs import define, field
from cuts.ir.graph import Graph
from cuts.tests.fuzz.service import Report


@define
class GraphCounts:
    """Totals of a run."""

    graphs: int = 0
    nodes: int = 0
    kernels: int = 0
    ill: int = 0
    levels: Counter[str] = field(factory=Counter)
    operations: Counter[str] = field(factory=Counter)
    findings: list[dict[str, Any]] = field(factory=list)
    machines: list[Mapping[str, object]] = field(factory=list)
    begin: float = field(factory=time.monotonic)

    def add(self, graph: Graph, report: Report) -> None:
        """Count a graph and its outcome."""
        self.graphs += 1
        self.nodes += len(graph.nodes)
        self.operations.update(node.op for node in graph.nodes)
        self.ill += report.kind == "ill-conditioned"
        self.machines += [machine for machine in report.machines if machine not in self.machines]
        for outcome in report.outcomes:
            self.kernels += outcome.kernels
            self.levels.update({f"{outcome.way}, {level}": count for level, count in outcome.levels.items()})

    @property
    def table(self) -> str:
        """The run in a few lines."""
        levels = ", ".join(f"{count} {name}" for name, count in sorted(self.levels.items()))
        lines = [
            f"graphs       {self.graphs} ({self.nodes} nodes, {len(self.operations)} operations)",
            f"kernels      {self.kernels}",
            f"groups       {levels}",
            f"findings     {len(self.findings)}",
            f"ill-posed    {self.ill} (single precision explains what differs)",
            f"seconds      {time.monotonic() - self.begin:.0f}",
        ]
        return "\n".join([*(f"finding {f['number']}: {f['text'][:300]}" for f in self.findings), *lines])

    @property
    def record(self) -> dict[str, Any]:
        """The run as JSON values."""
        return {
            "graphs": self.graphs, "nodes": self.nodes, "kernels": self.kernels,
            "groups": dict(sorted(self.levels.items())), "operations": dict(self.operations.most_common()),
            "findings": self.findings, "ill-conditioned": self.ill,
            "machines": self.machines, "seconds": round(time.monotonic() - self.begin, 1),
        }  # fmt: skip
