"""Greedy and optimal partitions of real subgraphs, under the cost model.

Subgraphs are runs of consecutive nodes of the models that the package `onnx` carries, after the graph passes, with
their weights as inputs. The greedy path through Algorithm 1's set is compared with the optimal partition
(`passes/fusion/grouping/optimal_partition.py`), both with `AnalyticCost` on an H200.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean

from cuts.backends import find_target
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import Row
from cuts.compile.loading import load_model, load_spec
from cuts.ir.graph import Graph
from cuts.ops import Registry
from cuts.passes import graph_passes
from cuts.passes.costs import AnalyticCost
from cuts.passes.fusion import GroupBuilder, Partitioner, Policy, build_programs, find_views, improve, optimal_partition
from cuts.passes.graph import run_passes

from .registry import TableRequest, row_of

#: Nodes of a subgraph, the nodes between two beginnings, and the most subgraphs of a model.
NUM_NODES, STEP, MAX_SUBGRAPHS = 14, 4, 45
TARGET = "cuda:h200"


def model_paths() -> dict[str, Path]:
    """Return the models of the package `onnx`, if it is installed."""
    try:
        import onnx
    except ImportError:
        return {}
    folder = Path(onnx.__path__[0], "backend/test/data/light")
    return {path.stem.removeprefix("light_"): path for path in sorted(folder.glob("light_*.onnx"))}


def model_names() -> tuple[str, ...]:
    """Return the names of the rows."""
    return tuple(model_paths())


def subgraphs(graph: Graph) -> Iterator[Graph]:
    """Yield runs of consecutive nodes as graphs; constants become inputs."""
    starts = range(0, max(1, len(graph.nodes) - NUM_NODES // 2), STEP)
    for first in list(starts)[:MAX_SUBGRAPHS]:
        nodes = graph.nodes[first : first + NUM_NODES]
        made = {value for node in nodes for value in node.outputs}
        needed = dict.fromkeys(v for node in nodes for v in node.operands if v not in made)
        inside = {id(node) for node in nodes}
        outside = {v for node in graph.nodes if id(node) not in inside for v in node.operands} | {*graph.outputs}
        inner = {v for node in nodes for v in node.operands}
        outputs = tuple(v for node in nodes for v in node.outputs if v in outside or v not in inner)
        types = {value: graph.types[value] for value in (*needed, *(v for n in nodes for v in n.outputs))}
        yield Graph(f"{graph.name}.{first}", tuple(needed), outputs, types, tuple(nodes))


def make_rows(request: TableRequest) -> Iterator[Row]:
    """Yield the row of each requested model."""
    target, registry, spec = find_target(TARGET), Registry.builtin(), load_spec(())
    evaluator, end = AnalyticCost(target), time.monotonic() + request.limit
    costs: dict[Hashable, float] = {}
    for name in request.names:
        if time.monotonic() > end:
            return
        graph = run_passes(load_model(str(model_paths()[name]), spec, None), graph_passes(registry, "fp32"))
        found: list[tuple[int, float, float]] = []
        limited = 0
        for part in subgraphs(graph):
            builder = GroupBuilder(find_views(build_programs(part, registry)), Policy(shared_bytes=target.MAX_shared))
            parts = Partitioner(builder, evaluator, costs)
            initial = parts.singletons()
            path = improve(parts, initial)
            best = optimal_partition(parts, initial, path)
            if best is None:
                limited += 1
                continue
            greedy, exact = (sum(map(parts.cost, groups)) for groups in (path, best))
            found.append((len(initial), greedy, exact))
        fields = {
            "subgraphs": len(found), "limited": limited, "units": [units for units, *_ in found],
            "ratios": [round(greedy / exact, 5) for _, greedy, exact in found if exact],
        }  # fmt: skip
        yield row_of("gap", name, "", fields, request.commit)


def table(rows: Sequence[Row]) -> str:
    """Return how much slower greedy partitions are, by model."""
    heads = ["model", "subgraphs", "units", "over the limits", "greedy is optimal", "greedy / optimal, mean", "worst"]
    lines = [_line(row["name"], [row]) for row in rows]
    return markdown_table(heads, [*lines, _line("all", rows)])


def _line(name: str, rows: Sequence[Row]) -> list[object]:
    ratios, units = ([v for row in rows for v in row[kind]] for kind in ("ratios", "units"))
    limited = sum(row["limited"] for row in rows)
    if not ratios:
        return [name, 0, None, limited, None, None, None]
    same = sum(ratio <= 1.0 + 1e-4 for ratio in ratios)
    sizes, mean = f"{min(units)} to {max(units)}", f"{geometric_mean(ratios):.4f}"
    return [name, len(ratios), sizes, limited, f"{same} of {len(ratios)}", mean, f"{max(ratios):.3f}"]
