"""Worker processes that check one graph each.

They report a process that ends or hangs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cuts.frontends.graph_json import graph_to_json
from cuts.ir.errors import BackendError
from cuts.ir.graph import Graph
from cuts.search.processes.child import Child, ChildLost
from cuts.tests.fuzz.checking import WAYS
from cuts.tests.fuzz.service import Report

SERVICE = "cuts.tests.fuzz.service:Fuzzer"
#: Seconds that one graph may take, in all ways together.
LIMIT = 120.0


def ask_child(child: Child, seconds: float, method: str, *arguments: Any) -> Report:
    """Return a process's report, or the error of an ended process."""
    try:
        report = child.call(seconds, method, *arguments)
    except ChildLost as lost:
        return Report(error=f"{'hang' if lost.hung else 'crash'}: {lost}")
    except BackendError as error:
        child.kill()
        return Report(error=str(error))
    assert isinstance(report, Report)
    return report


def check_graph(child: Child, target: str, graph: Graph, seed: int, ways: Sequence[str] = WAYS) -> Report:
    """Check one graph in a process of its own."""
    report = ask_child(child, LIMIT, "check", target, graph_to_json(graph), seed, tuple(ways))
    if report.error:
        child.kill()  # a device that a kernel has broken answers nothing any more
    return report
