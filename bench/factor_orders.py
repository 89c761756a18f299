"""Products of matrices in strict f32 by their factors' orders: what each way of fetching a factor that lies along the
depth reaches, beside PyTorch's product.

    python bench/factor_orders.py --out factor_orders.json
    python bench/factor_orders.py --tuned 25 --only 8192x3072x768 --only 2999x3001x1777

A factor `x[m, k]` lies along the depth. Threads may read it so from shared memory, in vectors along the depth
("deep"); or they read vectors along the rows, and the fetch turns the tile round: word by word in asynchronous copies
("copied"), or through registers ("carried"). The same tiles are timed in each form, with what the model likes best of
the forms. Kernels are compiled by as many processes as there are cores. With `--tuned`, the products are
tuned together besides, from nothing ("tuned"). Caches are cold (`bench/timing.py`), results are compared with a product
in float64.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from attrs import frozen
from cuts.backends.cuda.compile import compile_kernel
from cuts.backends.device import Device
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.peers import load_torch
from cuts.bench.products import described
from cuts.bench.records import RESULTS, Row, circumstances, exit_code, geomean, write_rows
from cuts.bench.timing import Contender, by_kernel, by_torch, in_turns, run_once, sets_for, together
from cuts.ir.errors import CutsError
from cuts.ir.expr import Read, call
from cuts.ir.index import Var, as_index
from cuts.ir.launch import KernelFunction
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.target import Target
from cuts.ir.types import DType, TensorType
from cuts.passes.lowering import extract, lower
from cuts.passes.model.bound import bound
from cuts.passes.model.rank import rank
from cuts.passes.schedule import check_schedule, choose
from cuts.passes.schedule.legal_points import features_of
from cuts.search.bench import DeviceBench
from cuts.search.build import Workers
from cuts.search.database import Database
from cuts.search.problem import Problem, machine_of
from cuts.search.resources import Resources
from cuts.search.settings import Settings
from cuts.search.tuner import Tuner

#: Rows, columns and depth.
SHAPES = (
    (8192, 3072, 768),
    (8192, 768, 3072),
    (8192, 768, 768),
    (2048, 768, 3072),
    (4096, 4096, 4096),
    (2999, 3001, 1777),
)
ORDERS = ("mk,kn", "mk,nk", "km,kn")
#: Order and padding of a tile whose factor lies along the depth, and whether threads carry it.
FORMS: Mapping[str, tuple[tuple[int, ...], int, bool]] = {
    "deep": ((1, 0), 4, False),
    "copied": ((), 4, False),
    "carried": ((), 4, True),
}


@frozen
class BlockTile:
    """Rows and columns of a block and of a thread, the depth of a chunk, buffers, and blocks that shall be resident."""

    block: tuple[int, int]
    thread: tuple[int, int]
    chunk: int
    stages: int
    resident: int

    def schedule(self, group: FusedGroup, order: str, form: str) -> Schedule:
        """Return the tile as a schedule of a product in some order of its factors."""
        segment = group.segments[0]
        (depth,) = segment.reductions[0].reduce
        dims, staging = [], []
        for side, (axis, factor) in enumerate(zip(segment.axes, order.split(","), strict=True)):
            deep = factor.endswith("k")
            layout, pad, carried = FORMS[form] if deep else ((), 4 if form in FORMS else 0, False)
            dims.append(TileDim((axis,), self.block[side], self.thread[side], 1 if layout else 4))
            staging.append(Staging(side, layout, pad, carried=carried))
        loop = ReductionSchedule((ReduceDim((depth,), self.chunk),), tuple(staging), self.stages)
        spread = SegmentSchedule(tuple(dims), (loop,), warp=(4, 8), zigzag=True)
        return Schedule((spread,), min_blocks=self.resident)


TILES = {
    "512 threads of 8x8": BlockTile((128, 256), (8, 8), 16, 2, 1),
    "512 of 8x8, ring of 4": BlockTile((128, 256), (8, 8), 16, 4, 1),
    "2x256 of 8x8": BlockTile((128, 128), (8, 8), 16, 2, 2),
    "2x256 of 8x8, chunks of 8": BlockTile((128, 128), (8, 8), 8, 3, 2),
    "256 of 8x16": BlockTile((128, 256), (8, 16), 16, 3, 1),
    "256 of 16x8": BlockTile((256, 128), (16, 8), 16, 3, 1),
    "2x128 of 16x8": BlockTile((128, 128), (16, 8), 16, 2, 2),
}


def product_of(shape: tuple[int, int, int], order: str) -> FusedGroup:
    """Return y[m, n] = sum over k of x * w, their indices in an order such as "mk,kn"."""
    axes = {name: Var(name, extent) for name, extent in zip("mnk", shape, strict=True)}
    first, second = order.split(",")
    reads = (Read(t, tuple(as_index(axes[c]) for c in at)) for t, at in (("x", first), ("w", second)))
    total = Reduction("t", (axes["k"],), "sum", call("mul", *reads))
    at = as_index(axes["m"]), as_index(axes["n"])
    segment = Segment((axes["m"], axes["n"]), (total,), (Output("y", at, Read("t", at)),))
    kinds = {"x": first, "w": second, "t": "mn", "y": "mn"}
    tensors = {t: TensorType(DType.F32, tuple(axes[c].extent for c in names)) for t, names in kinds.items()}
    return FusedGroup((segment,), tensors, ("x", "w"), ("y",))


@frozen
class TimedPoint:
    """A kernel to time: its product, what it is called, its schedule and what the model says of it, in microseconds."""

    shape: tuple[int, int, int]
    order: str
    name: str
    schedule: Schedule
    model: float
    least: float


def points_of(shape: tuple[int, int, int], order: str, target: Target, count: int) -> Iterator[TimedPoint]:
    """Yield every legal tile in every form, and the model's first points."""
    group = product_of(shape, order)
    deep = "k" in (order[1], order[4])
    found = {
        f"{form} {name}": tile.schedule(group, order, form)
        for form in (FORMS if deep else ("straight",))
        for name, tile in TILES.items()
    }
    found |= {f"model {n}": c.schedule for n, c in enumerate(choose(group, target, count=count))}
    for name, schedule in found.items():
        if not check_schedule(group, schedule, target):
            features = features_of(group, schedule, target)
            least = bound(features, target)
            estimate = float(rank(features, least, target))
            yield TimedPoint(shape, order, name, schedule, estimate * 1e6, float(least.time) * 1e6)


def build(asked: tuple[TimedPoint, Target]) -> tuple[KernelFunction, bytes] | str:
    """Lower and compile a point for a target; the reason where that fails."""
    point, target = asked
    try:
        function = emit(extract(lower(product_of(point.shape, point.order), point.schedule, {}, target)), "cuda")
        cubin = compile_kernel(function, target.arch)
    except CutsError as error:
        return error.message
    return (function, cubin.code) if not cubin.spill_bytes else f"spills {cubin.spill_bytes} bytes"


@frozen
class OrderBench:
    """Where products are timed."""

    device: Device
    target: Target
    torch: Any

    def rows(self, points: Sequence[TimedPoint], built: Sequence[tuple[KernelFunction, bytes] | str]) -> list[Row]:
        """Return the rows of one product in one order, PyTorch's first."""
        shape, order = points[0].shape, points[0].order
        group = product_of(shape, order)
        sets = sets_for(sum(group.tensors[t].nbytes for t in "xwy"), self.target.l2_bytes)
        memory = [self._tensors(group, number) for number in range(sets)]
        exact = self._factor(memory[0], order, 0).double() @ self._factor(memory[0], order, 1).double()
        contenders, errors = [self._library(order, memory)], {}
        rows: list[Row] = []
        facts: Row = {"shape": "x".join(map(str, shape)), "order": order}
        for point, made in zip(points, built, strict=True):
            if isinstance(made, str):
                rows.append({**facts, "point": point.name, "failure": made})
                continue
            contenders.append(self._kernel(point.name, *made, memory))
            errors[point.name] = float((memory[0]["y"].double() - exact).norm() / exact.norm())
        times = in_turns(self.device, contenders)
        peer, flops = times["torch"].median, 2.0 * shape[0] * shape[1] * shape[2]
        known = {p.name: p for p in points}
        for name, timing in times.items():
            row: Row = {**facts, "point": name, "us": timing.median * 1e6, "spread": timing.spread,
                        "tflops": flops / timing.median / 1e12, "over_torch": peer / timing.median}  # fmt: skip
            if name in known:
                row |= {"model_us": known[name].model, "bound_us": known[name].least, "error": errors[name],
                        "schedule": described(known[name].schedule)}  # fmt: skip
            rows.append(row)
        return rows

    def _tensors(self, group: FusedGroup, number: int) -> dict[str, Any]:
        generator = self.torch.Generator("cuda").manual_seed(number)
        return {t: self.torch.randn(group.tensors[t].shape, generator=generator, device="cuda") for t in "xwy"}

    def _factor(self, tensors: Mapping[str, Any], order: str, side: int) -> Any:
        """Return a factor as the matrix that PyTorch multiplies, a view where it lies the other way round."""
        tensor = tensors["xw"[side]]
        return tensor if order.split(",")[side] == ("mk", "kn")[side] else tensor.T

    def _library(self, order: str, memory: Sequence[Mapping[str, Any]]) -> Contender:
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = False
        factors = [[self._factor(tensors, order, side) for side in (0, 1)] for tensors in memory]
        results = [torch.empty_like(m["y"]) for m in memory]
        pairs = zip(factors, results, strict=True)
        return by_torch(
            self.device, torch, "torch", [partial(torch.matmul, *sides, out=result) for sides, result in pairs]
        )

    def _kernel(
        self, name: str, function: KernelFunction, code: bytes, memory: Sequence[Mapping[str, Any]]
    ) -> Contender:
        launches = by_kernel(self.device, function, code, memory)
        run_once(self.device, self.torch, launches[0], memory[0]["y"])
        return Contender(name, self.device.capture(together(launches)), len(memory))


def tuned_points(
    products: Sequence[tuple[tuple[int, int, int], str]], target: Target, budget: float
) -> list[TimedPoint]:
    """Return what tuning chooses for each product, from nothing."""
    found: list[TimedPoint] = []
    resources = Resources(Database(None), Workers, lambda: DeviceBench(target), budget=budget)
    problems = [Problem(product_of(s, o), {}, target, machine_of(target), f"{s} {o}") for s, o in products]
    try:
        choices = Tuner(resources).run(problems, Settings(prove=False))
    finally:
        resources.close()
    for (shape, order), choice in zip(products, choices, strict=True):
        print(f"tuned {shape} {order}: {choice.trials} kernels, {choice.origin}", file=sys.stderr)
        found.append(TimedPoint(shape, order, "tuned", choice.candidate.schedule, 0.0, 0.0))
    return found


def table(rows: Sequence[Row]) -> str:
    """Return TFLOP/s by product and order: PyTorch's, the best tile of each form, the model's first point and best, and
    what tuning chose; then the geometric means over PyTorch's.
    """
    heads = ("torch", "deep", "copied", "carried", "straight", "model 0", "model", "tuned")
    lines = [f"{'rows x columns x depth':<23}{'order':<7}" + "".join(f"{h:>10}" for h in heads)]
    over: dict[str, list[float]] = {}
    for shape, order in dict.fromkeys((r["shape"], r["order"]) for r in rows):
        own = [r for r in rows if (r["shape"], r["order"]) == (shape, order) and "failure" not in r]
        cells = ""
        for head in heads:
            best = max((r for r in own if r["point"].startswith(head)), key=lambda r: r["tflops"], default=None)
            cells += f"{best['tflops']:>10.1f}" if best else f"{'':>10}"
            if best:
                over.setdefault(head, []).append(best["over_torch"])
        lines.append(f"{shape:<23}{order:<7}{cells}")
    means = "".join(f"{geomean(over[h]):>10.3f}" if h in over else f"{'':>10}" for h in heads)
    return "\n".join([*lines, f"{'over PyTorch, mean':<30}{means}"])


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="MxNxK", help="a product; may be repeated")
    parser.add_argument("--count", type=int, default=2, help="how many of the model's points are timed")
    parser.add_argument("--tuned", type=float, default=0.0, metavar="SECONDS", help="tune all for so long")
    parser.add_argument("--target", default="cuda:device")
    parser.add_argument("--jobs", type=int, default=None, help="processes that compile; as many as cores")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--out", type=Path, default=RESULTS / "factor_orders.json", help="the file of rows")
    return parser.parse_args(argv)


def main() -> None:
    """Time what is asked for; the file grows with every product, and the table is printed at the end."""
    options, started = arguments(), time.monotonic()
    target = find_target(options.target)
    wanted = [tuple(map(int, text.split("x"))) for text in options.only or ()]
    products = [(s, o) for s in SHAPES if not wanted or s in wanted for o in ORDERS]
    points = {p: [*points_of(*p, target, options.count)] for p in products}
    if options.tuned:
        for point in tuned_points(products, target, options.tuned):
            points[point.shape, point.order].append(point)
    every = [(point, target) for found in points.values() for point in found]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        built = dict(zip([p for p, _ in every], pool.map(build, every), strict=True))
    print(f"{len(every)} kernels after {time.monotonic() - started:.0f} s", file=sys.stderr)
    bench = OrderBench(device := open_device(target), target, load_torch())
    facts, rows = circumstances(device.name, options.commit), []
    for found in points.values():
        rows += [{**row, **facts} for row in bench.rows(found, [built[p] for p in found])]
        write_rows(options.out, rows)
    for row in rows:
        told = row.get("failure") or f"{row['us']:9.1f} us {row['tflops']:6.1f} {row.get('model_us', 0.0):9.1f}"
        print(f"{row['shape']:<16}{row['order']:<7}{told}  {row['point']}  {row.get('schedule', '')}")
    print(table(rows))
    print(f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(exit_code(main))
