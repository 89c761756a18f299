"""Attention and its gradients with scores kept in memory or computed again, beside PyTorch, in strict fp32.

    python bench/scores.py --out scores.json

A case is the graph of a training step's attention: its result and the gradients of its three operands. All plans are
made by the model: `kept` has scores in memory, `once` computes them again once for all gradients, and `again` in front
of each side's, so that no kernel stores any (`passes/fusion/sums/products_again.py`). Of each kernel the model's best
points are timed, `--count` of those with several segments, half of them with blocks of other sizes. Then the best
kernels of each plan, one after another, take turns with PyTorch's memory-efficient and plain attention, forward and
backward. Caches are cold (`bench/timing.py`). Results are compared with float64, and points of a kernel with one
another.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import cuts
from attrs import evolve, frozen
from cuts.backends.device import Buffer, Device, Launch, Pointer
from cuts.backends.devices import find_target, open_device
from cuts.bench.chains import ChainPoint, add_point_options, described, ready
from cuts.bench.peers import load_torch
from cuts.bench.records import Row, circumstances, exit_code, write_rows
from cuts.bench.timing import Contender, in_turns, sets_for
from cuts.ir.errors import CutsError
from cuts.ir.graph import Graph, Node
from cuts.ir.target import Target
from cuts.ir.types import DType, TensorType
from cuts.passes.evaluators import Modelled
from cuts.passes.fusion import (
    Group,
    Partitioner,
    Policy,
    Remembered,
    Workshop,
    build_programs,
    divide_behind,
    drop_unused,
    find_views,
    partition,
    products_again,
    share_sums,
)

#: Batch, heads, queries and keys, width of each, and whether it is causal.
CASES: Mapping[str, tuple[int, int, int, int, bool]] = {
    "BERT b16": (16, 12, 128, 64, False),
    "512": (4, 12, 512, 64, False),
    "777": (2, 12, 777, 64, False),
    "causal 1024": (2, 16, 1024, 64, True),
    "4096": (1, 8, 4096, 64, False),
    "16384": (1, 2, 16384, 64, False),
}
OPERANDS = ("q", "k", "v")


def training_graph(name: str) -> tuple[Graph, Any, tuple[str, ...]]:
    """Return the graph of a case, its declarations, and its outputs: the result and the gradients of the operands."""
    b, h, n, e, causal = CASES[name]
    kind = TensorType(DType.F32, (b, h, n, e))
    node = Node("a", "attention", OPERANDS, ("y",), {"causal": causal})
    given = dict.fromkeys((*OPERANDS, "y", "dy"), kind)
    made = cuts.grad(Graph(name, (*OPERANDS, "dy"), ("y",), given, (node,)), loss="y", wrt=OPERANDS, given="dy")
    outputs = ("y", *(made.gradients[t] for t in OPERANDS))
    return evolve(made.graph, inputs=(*OPERANDS, "dy"), outputs=outputs), made.spec.registry, outputs


def all_plans(name: str, target: Target) -> dict[str, list[Group]]:
    """Return the kernels of a case by each of the ways; run in a process of its own."""
    graph, registry, _ = training_graph(name)
    kept = share_sums(drop_unused(build_programs(graph, registry)))
    policy, evaluator = Policy(shared_bytes=target.MAX_shared), Remembered(Modelled(target))
    plans = {}
    once = products_again(kept, lambda family: "once")
    for plan, programs in (("kept", kept), ("once", once), ("again", products_again(kept))):
        workshop = Workshop(find_views(divide_behind(programs)), policy)
        plans[plan] = partition(Partitioner(workshop, evaluator), "mixed")
    return plans


@frozen
class ScoreBench:
    """Where plans are timed."""

    device: Device
    target: Target
    torch: Any

    def rows(
        self, name: str, plans: Mapping[str, list[Group]], points: Mapping[str, list[list[ChainPoint]]]
    ) -> list[Row]:
        """Return a row per kernel's point, and one per contender of the end."""
        graph, _, outputs = training_graph(name)
        rows: list[Row] = []
        exact = self._exact(name, self._given(graph, 0), outputs)
        contenders = self._libraries(name, graph)
        kept: list[Any] = []
        for plan, groups in plans.items():
            sizes = {t: g.form.tensors[c].nbytes for g in groups for c, t in g.tensors.items() if c in g.form.outputs}
            total = sum(sizes.values()) + sum(graph.types[t].nbytes for t in graph.inputs)
            memory = [self._tensors(groups, graph, n) for n in range(sets_for(total, self.target.l2_bytes))]
            kept.append(memory)
            best: list[list[Launch]] = []
            for number, (group, found) in enumerate(zip(groups, points[plan], strict=True)):
                more, launches = self._best(name, plan, number, group, found, memory)
                rows += more
                best += [launches] if launches else []
            if len(best) < len(groups):
                continue
            steps = [launch for one in zip(*best, strict=True) for launch in one]
            contenders.append(Contender(plan, self.device.capture(_all(steps)), len(memory)))
            contenders[-1].replay()
            self.device.synchronize()
            errors = {t: self._error(memory[0][t], exact[t]) for t in outputs}
            rows.append({"case": name, "plan": plan, "kernel": -2, "bytes": total, "error": max(errors.values()),
                         "stored": sum(sizes.values()) - sum(graph.types[t].nbytes for t in outputs)})  # fmt: skip
        for plan, timing in in_turns(self.device, contenders).items():
            rows.append({"case": name, "plan": plan, "kernel": -1, "us": timing.median * 1e6, "spread": timing.spread})
        del kept, contenders
        self.torch.cuda.empty_cache()
        return rows

    def _best(
        self, name: str, plan: str, number: int, group: Group, found: Sequence[ChainPoint], memory: Sequence[Any]
    ) -> tuple[list[Row], list[Launch]]:
        """Return a row for each point of a kernel, and the launches of the fastest one that computes what the first
        does; that one is run last, for what comes behind reads its results.
        """
        rows: list[Row] = []
        timed: list[tuple[float, list[Launch]]] = []
        first: dict[str, Any] = {}
        own = [t for c, t in group.tensors.items() if c in group.form.outputs]
        for point in found:
            row: Row = {"case": name, "plan": plan, "kernel": number, "model_us": point.model * 1e6,
                        "units": " ".join(group.units), "point": described(point.schedule),
                        "registers": point.cubin.registers, "spilled": point.cubin.spill_bytes}  # fmt: skip
            rows.append(row)
            launches = self._bound(group, point, memory)
            if launches is None:
                row["error"] = "not loaded"
                continue
            first = first or {t: memory[0][t].clone() for t in own}
            row["error"] = max(self._error(memory[0][t], first[t]) for t in own)
            run = Contender("p", self.device.capture(_all(launches)), len(memory))
            row["us"] = in_turns(self.device, [run], rounds=3, least=1e-3)["p"].median * 1e6
            if row["error"] < 1e-5:
                timed.append((row["us"], launches))
        if not timed:
            return rows, []
        launches = min(timed, key=lambda pair: pair[0])[1]
        for launch in launches:
            launch()
        self.device.synchronize()
        return rows, launches

    def _given(self, graph: Graph, number: int) -> dict[str, Any]:
        """Return random inputs, the same ones for a number."""
        generator = self.torch.Generator("cuda").manual_seed(number)
        shapes = {t: graph.types[t].shape for t in graph.inputs}
        return {t: self.torch.randn(shape, generator=generator, device="cuda") for t, shape in shapes.items()}

    def _tensors(self, groups: Sequence[Group], graph: Graph, number: int) -> dict[str, Any]:
        """Return a set of tensors by name: random inputs, results, and what lies between kernels."""
        found = self._given(graph, number)
        for group in groups:
            for tensor, own in ((t, c) for c, t in group.tensors.items() if c in group.form.outputs):
                shape = group.form.tensors[own].shape
                found.setdefault(tensor, self.torch.full(shape, float("nan"), device="cuda"))
        return found

    def _bound(self, group: Group, point: ChainPoint, memory: Sequence[Mapping[str, Any]]) -> list[Launch] | None:
        """Return the launches of a kernel on every set, None where the device does not take it."""
        try:
            (loaded,) = self.device.build([point.function], [point.cubin.code])
        except CutsError:
            return None
        launches = []
        for tensors in memory:
            placed = [tensors[group.tensors[a.tensor]] for a in point.function.arguments]
            pointers = [Pointer(Buffer(t.data_ptr(), t.nbytes)) for t in placed]
            launches.append(self.device.bind(loaded, point.function, pointers))
        self.torch.cuda.synchronize()
        for launch in launches:
            launch()
        self.device.synchronize()
        return launches

    # ---- PyTorch

    def _libraries(self, name: str, graph: Graph) -> list[Contender]:
        """Record PyTorch's attention, forward and backward, by its memory-efficient kernels and by plain ones."""
        backends = self.torch.nn.attention.SDPBackend
        total = sum(graph.types[t].nbytes for t in (*graph.inputs, *graph.outputs))
        sets = [self._given(graph, n) for n in range(sets_for(total, self.target.l2_bytes))]
        found = []
        for label, backend in (("efficient", backends.EFFICIENT_ATTENTION), ("math", backends.MATH)):
            try:
                found.append(Contender(f"torch {label}", self._recorded(name, sets, backend), len(sets)))
            except RuntimeError as error:  # no kernel of that kind, or no room for scores
                print(f"{name}: torch {label}: {str(error).splitlines()[0]}", file=sys.stderr)
                self.torch.cuda.empty_cache()
        return found

    def _recorded(self, name: str, sets: Sequence[Mapping[str, Any]], backend: Any) -> Launch:
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = False
        stream, side = torch.cuda.ExternalStream(self.device.stream_handle), torch.cuda.Stream()

        def run() -> list[Any]:
            with torch.nn.attention.sdpa_kernel([backend]):
                return [self._step(name, tensors) for tensors in sets]

        with torch.cuda.stream(side):
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            kept = run()

        def replay(keep: object = kept) -> None:
            with torch.cuda.stream(stream):
                graph.replay()

        return replay

    def _step(self, name: str, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the result of attention and its gradients."""
        with self.torch.enable_grad():  # which peers go without elsewhere
            operands = [tensors[t].detach().requires_grad_() for t in OPERANDS]
            result = self.torch.nn.functional.scaled_dot_product_attention(*operands, is_causal=CASES[name][-1])
            return (result.detach(), *self.torch.autograd.grad(result, operands, tensors["dy"]))

    def _exact(self, name: str, tensors: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, Any]:
        """Return the results in float64, a head at a time: scores take room."""
        b, h, *_ = CASES[name]
        backend = self.torch.nn.attention.SDPBackend.MATH
        parts = []
        with self.torch.nn.attention.sdpa_kernel([backend]):
            for n in range(b * h):
                one = {t: x.flatten(0, 1)[n : n + 1, None].double() for t, x in tensors.items()}
                parts.append([part.cpu() for part in self._step(name, one)])
        shape = tensors["q"].shape
        found = {t: self.torch.cat([p[n] for p in parts]).reshape(shape) for n, t in enumerate(outputs)}
        self.torch.cuda.empty_cache()
        return found

    def _error(self, found: Any, exact: Any) -> float:
        wide = exact.to(found.device).double()
        return float((found.double() - wide).norm() / wide.norm())


def _all(launches: Sequence[Launch]) -> Callable[[], None]:
    """Return what launches all of some kernels."""

    def run() -> None:
        for launch in launches:
            launch()

    return run


def table(rows: Sequence[Row]) -> str:
    """Return the points of each kernel, fastest first, and what took turns."""
    lines = []
    for name in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == name]
        points = (r for r in own if r["kernel"] >= 0)
        for row in sorted(points, key=lambda r: (r["plan"], r["kernel"], r.get("us", 1e9))):
            took = f"{row['us']:9.1f} us" if "us" in row else "   not run "
            error = row.get("error")
            wrong = f"  differs {error:.0e}" if isinstance(error, float) and error > 1e-5 else ""
            lines.append(f"  {took}  model {row['model_us']:8.1f}  {row['plan']} {row['kernel']}  r{row['registers']} "
                         f"spill {row['spilled']}{wrong}  {row['point']}")  # fmt: skip
        wholes = {r["plan"]: r for r in own if r["kernel"] == -2}
        ends = {r["plan"]: r["us"] for r in own if r["kernel"] == -1}
        peer = min((us for plan, us in ends.items() if plan.startswith("torch")), default=0.0)
        for plan, us in ends.items():
            whole = wholes.get(plan)
            more = f", {whole['stored'] / 1e6:.0f} MB between kernels, error {whole['error']:.1e}" if whole else ""
            lines.append(f"{name}: {plan} {us:.1f} us, {peer / us:.3f} of PyTorch's best{more}")
    return "\n".join(lines)


def modelled(name: str, plans: Mapping[str, list[Group]], points: Mapping[str, list[list[ChainPoint]]]) -> list[Row]:
    """Return rows of what the model says, where nothing is timed."""
    rows: list[Row] = []
    for plan, groups in plans.items():
        for number, (group, found) in enumerate(zip(groups, points[plan], strict=True)):
            rows += [{"case": name, "plan": plan, "kernel": number, "model_us": p.model * 1e6,
                      "units": " ".join(group.units), "point": described(p.schedule),
                      "registers": p.cubin.registers, "spilled": p.cubin.spill_bytes} for p in found]  # fmt: skip
        total = sum(found[0].model for found in points[plan]) * 1e6
        rows.append({"case": name, "plan": plan, "kernel": -1, "us": total})
    return rows


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_point_options(parser, CASES, 150.0, "scores.json")
    parser.add_argument("--count", type=int, default=8, help="points of a kernel with several products")
    parser.add_argument("--others", type=int, default=3, help="points of each other kernel")
    return parser.parse_args(argv)


def main() -> None:
    """Time what is asked for; the file grows with every case, and the table is printed at the end."""
    options, started = arguments(), time.monotonic()
    target = find_target(options.target)
    names = options.only or list(CASES)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        asked = {name: pool.submit(all_plans, name, target) for name in names}
        plans, pending = {}, {}
        for name in names:
            plans[name] = asked[name].result()
            pending[name] = {
                plan: [
                    pool.submit(ready, g.form, target, options.count if len(g.form.segments) > 1 else options.others)
                    for g in groups
                ]
                for plan, groups in plans[name].items()
            }
        rows: list[Row] = []
        bench = None
        if not options.prepare:
            device = open_device(target)
            bench = ScoreBench(device, target, load_torch())
            facts = circumstances(device.name, options.commit)
        for name in names:
            points = {plan: [future.result() for future in futures] for plan, futures in pending[name].items()}
            print(f"{time.monotonic() - started:.1f} s: {name} is compiled", file=sys.stderr, flush=True)
            if time.monotonic() - started > options.limit:
                break
            if bench is None:
                rows += modelled(name, plans[name], points)
                continue
            rows += [row | facts for row in bench.rows(name, plans[name], points)]
            write_rows(options.out, rows)
    print(f"{time.monotonic() - started:.1f} s in all", file=sys.stderr, flush=True)
    print(table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
