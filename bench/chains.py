"""Attention as one kernel beside the plan without chains and PyTorch's, point by point, in strict fp32.

    python bench/chains.py --out chains.json

A case is one node of a graph. The kernels of both plans are those that the model likes best, `--count` of a chain, half
of them with blocks of other sizes, and a few of each kernel of the other plan; processes choose and compile them. Each
is compared with float64 and timed; then the best chain, the other plan's best kernels one after another, and PyTorch's
function take turns. Caches are cold (`bench/timing.py`). The table gives microseconds, what the model said, registers,
spills, bytes of shared memory.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen
from cuts.backends.cuda.compile import Cubin, compile_kernels
from cuts.backends.device import Device, Launch
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.peers import load_torch
from cuts.bench.records import RESULTS, Row, circumstances, exit_code, write_rows
from cuts.bench.timing import Contender, by_kernel, by_torch, in_turns, run_once, sets_for, together
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph, Node
from cuts.ir.launch import KernelFunction
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.target import Target
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.evaluators import Modelled
from cuts.passes.fusion import Group, Partitioner, Policy, Workshop, build_programs, find_views, partition
from cuts.passes.fusion.hulls import hulls, joined
from cuts.passes.fusion.sums.divisors import divide_behind
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import choose, columns_at, evaluate, make_space
from cuts.passes.schedule.enumerate import schedule_of
from cuts.passes.schedule.prune import score

#: Batch, heads, heads of keys, queries, keys, width of each, and whether it is causal.
CASES: Mapping[str, tuple[int, int, int, int, int, int, bool]] = {
    "BERT b64": (64, 12, 12, 128, 128, 64, False),
    "in groups": (4, 32, 8, 512, 512, 64, False),
    "odd": (2, 12, 12, 777, 777, 64, False),
    "causal": (4, 12, 12, 1024, 1024, 64, True),
}
#: Kernels of the other plan that are timed of each group.
OTHERS = 3


@frozen
class ChainPoint:
    """A kernel of a group: its schedule, what the model says in seconds, its source, and what a compiler made of it."""

    schedule: Schedule
    model: float
    function: KernelFunction
    cubin: Cubin


def attention_graph(name: str) -> Graph:
    """Return the graph of a case."""
    b, h, g, m, n, e, causal = CASES[name]
    shapes = {"q": (b, h, m, e), "k": (b, g, n, e), "v": (b, g, n, e), "y": (b, h, m, e)}
    types = {t: TensorType(DType.F32, shape) for t, shape in shapes.items()}
    node = Node("a", "attention", ("q", "k", "v"), ("y",), {"causal": causal})
    return Graph(name, ("q", "k", "v"), ("y",), types, (node,))


def both_plans(name: str, target: Target) -> tuple[list[Group], list[Group]]:
    """Return the chain of a case, and the groups of the plan without chains, over tensors of the graph."""
    views = find_views(divide_behind(build_programs(attention_graph(name), Registry.builtin())))
    parts = Partitioner(Workshop(views, Policy()), Modelled(target))
    single = parts.singletons()
    chain = joined(parts.workshop, next(iter(hulls(parts, single, parts.owners(single)))))
    assert isinstance(chain, Group), chain
    without = Workshop(views, Policy(shared=False))
    return [chain], partition(Partitioner(without, Modelled(target)), "mixed")


def ready(form: FusedGroup, target: Target, count: int) -> list[ChainPoint]:
    """Return a group's best points by the model, compiled; run in a process of its own."""
    found = {c.schedule: c.score for c in choose(form, target, count=count)}
    if len(form.segments) > 1:
        found = {**dict(list(found.items())[: count // 2]), **blocks_apart(form, target, count - count // 2)}
    functions = [emit(extract(lower(form, schedule, {}, target)), "cuda") for schedule in found]
    cubins = compile_kernels(functions, target.arch)
    return [ChainPoint(s, score, f, b) for (s, score), f, b in zip(found.items(), functions, cubins, strict=True)]


def blocks_apart(form: FusedGroup, target: Target, count: int) -> dict[Schedule, float]:
    """Return points of a sample that differ in their blocks, their threads or the parts of their rows, the best of each
    by the model: what the model likes best is often much alike.
    """
    space = make_space(form, target, coarse=True)
    best: dict[tuple[object, ...], tuple[float, Schedule]] = {}
    for structure in space.structures:
        numbers = np.random.default_rng(0).integers(0, structure.size, 1 << 16)
        columns = columns_at(structure, numbers)
        scores = score(evaluate(space, structure, columns, 0, numbers), space, "bound")
        for n in np.argsort(scores, kind="stable")[:400]:
            values = {name: int(np.broadcast_to(column, numbers.shape)[n]) for name, column in columns.items()}
            schedule = schedule_of(form, structure, values, target.warp_size)
            first, *_, last = schedule.segments
            key = schedule.threads, *(d.block for d in (*last.dims, *first.dims))
            if np.isfinite(scores[n]) and float(scores[n]) < best.get(key, (inf, schedule))[0]:
                best[key] = float(scores[n]), schedule
    return {schedule: seconds for seconds, schedule in sorted(best.values(), key=lambda pair: pair[0])[:count]}


def described(schedule: Schedule) -> str:
    """Return a schedule in a few words: a segment's tile, its lanes, its first loop."""
    words = []
    for part in schedule.segments:
        tile = "x".join(
            f"{d.block}/{d.thread}" + (f"v{d.vector}" if d.vector > 1 else "") for d in part.dims if d.block > 1
        )
        loop = part.reductions[0] if part.reductions else None
        text = f"k{loop.dims[0].chunk} x{loop.stages} s{len(loop.staging)}" if loop else ""
        turned = "".join("t" if s.order else "n" for s in loop.staging) if loop else ""
        words.append(f"{tile} {f'l{part.lanes} ' if part.lanes > 1 else ''}{text}{turned}")
    return " | ".join(words) + (f" b{schedule.min_blocks}" if schedule.min_blocks else "")


@frozen
class ChainBench:
    """Where chains are timed."""

    device: Device
    target: Target
    torch: Any

    def rows(
        self, name: str, plans: Mapping[str, list[Group]], points: Mapping[str, list[list[ChainPoint]]]
    ) -> list[Row]:
        """Return a row per kernel, and one per contender of the end."""
        torch, graph = self.torch, attention_graph(name)
        rows: list[Row] = []
        sets = sets_for(sum(graph.types[t].nbytes for t in ("q", "k", "v", "y")), self.target.l2_bytes)
        memory = [self._tensors(plans, graph, n) for n in range(sets)]
        exact = self._exact(name, memory[0])
        contenders = [self._library(name, memory)]
        for plan, groups in plans.items():
            best = []
            for number, (group, found) in enumerate(zip(groups, points[plan], strict=True)):
                timed: list[tuple[float, list[Launch]]] = []
                for point in found:
                    launches = self._bound(group, point, memory)
                    if launches is None:
                        rows.append(_row(name, plan, number, point) | {"error": "not loaded"})
                        continue
                    run = Contender("p", self.device.capture(together(launches)), sets)
                    seconds = in_turns(self.device, [run], rounds=3, least=1e-3)["p"].median
                    error = self._error(memory[0]["y"], exact) if plan == "chain" else None
                    rows.append(_row(name, plan, number, point) | {"us": seconds * 1e6, "error": error})
                    if error is None or error < 1e-5:
                        timed.append((seconds, launches))
                if timed:
                    best.append(min(timed, key=lambda pair: pair[0])[1])
            if len(best) == len(groups):
                steps = [launch for one in zip(*best, strict=True) for launch in one]
                contenders.append(Contender(plan, self.device.capture(together(steps)), sets))
        for plan, timing in in_turns(self.device, contenders).items():
            row: Row = {"case": name, "plan": plan, "kernel": -1, "us": timing.median * 1e6, "spread": timing.spread}
            rows.append(row)
        error = self._error(memory[0]["y"], exact)
        rows[-1]["error"] = error
        torch.cuda.empty_cache()
        return rows

    def _tensors(self, plans: Mapping[str, list[Group]], graph: Graph, number: int) -> dict[str, Any]:
        """Return a set of tensors by name: random inputs, results and what lies between kernels."""
        torch = self.torch
        generator = torch.Generator("cuda").manual_seed(number)
        found = {t: torch.randn(graph.types[t].shape, generator=generator, device="cuda") for t in graph.inputs}
        for group in (g for groups in plans.values() for g in groups):
            for tensor, own in ((t, c) for c, t in group.tensors.items() if c in group.form.outputs):
                shape = group.form.tensors[own].shape
                found.setdefault(tensor, torch.full(shape, float("nan"), device="cuda"))
        return found

    def _bound(self, group: Group, point: ChainPoint, memory: Sequence[Mapping[str, Any]]) -> list[Launch] | None:
        """Return the launches of a kernel on every set, None where the device does not take it."""
        sets = [{own: tensors[t] for own, t in group.tensors.items() if t in tensors} for tensors in memory]
        try:
            launches = by_kernel(self.device, point.function, point.cubin.code, sets)
        except CutsError:
            return None
        run_once(self.device, self.torch, launches[0], memory[0]["y"])
        return launches

    def _function(self, name: str, tensors: Mapping[str, Any]) -> Any:
        _, h, g, _, _, _, causal = CASES[name]
        k, v = (tensors[t].repeat_interleave(h // g, 1) if h != g else tensors[t] for t in "kv")
        return self.torch.nn.functional.scaled_dot_product_attention(tensors["q"], k, v, is_causal=causal)

    def _library(self, name: str, memory: Sequence[Mapping[str, Any]]) -> Contender:
        """Record PyTorch's function on every set."""
        self.torch.backends.cuda.matmul.allow_tf32 = False
        calls = [partial(self._function, name, tensors) for tensors in memory]
        return by_torch(self.device, self.torch, "torch", calls)

    def _exact(self, name: str, tensors: Mapping[str, Any]) -> Any:
        """Return the results in float64, some batches at a time: scores take room."""
        wide = {t: tensors[t].double() for t in "qkv"}
        one = range(wide["q"].shape[0])
        return self.torch.cat([self._function(name, {t: x[n : n + 1] for t, x in wide.items()}) for n in one])

    def _error(self, found: Any, exact: Any) -> float:
        return float((found.double() - exact).norm() / exact.norm())


def _row(name: str, plan: str, number: int, point: ChainPoint) -> Row:
    shared = point.function.dynamic_shared or point.cubin.shared_bytes
    return {"case": name, "plan": plan, "kernel": number, "model_us": point.model * 1e6,
            "point": described(point.schedule), "registers": point.cubin.registers,
            "spilled": point.cubin.spill_bytes, "shared": shared}  # fmt: skip


def table(rows: Sequence[Row]) -> str:
    """Return the kernels of each case and plan, fastest first, and what took turns."""
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        for row in sorted(
            (r for r in own if r["kernel"] >= 0), key=lambda r: (r["plan"], r["kernel"], r.get("us", 1e9))
        ):
            took = f"{row['us']:9.1f} us" if "us" in row else "   not run "
            error = row.get("error")
            wrong = f"  error {error:.1e}" if isinstance(error, float) else ""
            lines.append(f"  {took}  model {row['model_us']:7.1f}  {row['plan']} {row['kernel']}  r{row['registers']} "
                         f"spill {row['spilled']} smem {row['shared']}{wrong}  {row['point']}")  # fmt: skip
        peer = next((r["us"] for r in own if r["plan"] == "torch"), 0.0)
        ends = (r for r in own if r["kernel"] < 0)
        lines += [f"{name}: {r['plan']} {r['us']:.1f} us, {peer / r['us']:.3f} of torch's speed" for r in ends]
    return "\n".join(lines)


def add_point_options(parser: argparse.ArgumentParser, cases: Mapping[str, object], limit: float, file: str) -> None:
    """Add the options of a bench that times points of the kernels of some cases."""
    parser.add_argument("--only", action="append", choices=tuple(cases), help="a case; may be repeated")
    parser.add_argument("--limit", type=float, default=limit, metavar="SECONDS", help="begin no case after this")
    parser.add_argument("--workers", type=int, default=16, help="processes that choose and compile")
    parser.add_argument("--target", default="cuda:device")
    parser.add_argument("--prepare", action="store_true", help="choose and compile only, for a target without a device")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--out", type=Path, default=RESULTS / file, help="the file of rows")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_point_options(parser, CASES, 75.0, "chains.json")
    parser.add_argument("--count", type=int, default=12, help="points of a chain")
    return parser.parse_args(argv)


def main() -> None:
    """Time what is asked for; the file grows with every case, and the table is printed at the end."""
    options, started = arguments(), time.monotonic()
    target = find_target(options.target)
    names = options.only or list(CASES)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        plans = {name: pool.submit(both_plans, name, target) for name in names}
        asked = {}
        for name in names:
            chain, other = plans[name].result()
            asked[name] = {
                "chain": (chain, [pool.submit(ready, g.form, target, options.count) for g in chain]),
                "others": (other, [pool.submit(ready, g.form, target, OTHERS) for g in other]),
            }
        rows: list[Row] = []
        bench = None
        if not options.prepare:
            device = open_device(target)
            bench = ChainBench(device, target, load_torch())
            facts = circumstances(device.name, options.commit)
        for name in names:
            points = {plan: [future.result() for future in futures] for plan, (_, futures) in asked[name].items()}
            print(f"{time.monotonic() - started:.1f} s: {name} is compiled", file=sys.stderr, flush=True)
            if time.monotonic() - started > options.limit:
                break
            if bench is None:
                rows += [
                    _row(name, plan, n, p) for plan in points for n, found in enumerate(points[plan]) for p in found
                ]
                continue
            rows += [row | facts for row in bench.rows(name, {p: g for p, (g, _) in asked[name].items()}, points)]
            write_rows(options.out, rows)
    print(f"{time.monotonic() - started:.1f} s in all", file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
