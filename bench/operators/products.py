"""Matrix products by matrix instructions against the library, schedule by schedule.

    python -m cuts.bench products --out products.json                        4096^3 in every format
    python -m cuts.bench products --list --format f16 --out products.json    the products of networks
    python -m cuts.bench products --shape 8192x1024x8192 --gelu --format bf16    one product (rows, columns, depth)

For each format the contenders are the first choices of the cost model and PyTorch, all with cold caches. The table
gives median microseconds, TFLOP/s, the ratio to PyTorch, the estimate of the cost model, and the relative error to
float64 in the Frobenius norm.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from attrs import frozen
from cuts.backends.device import Device
from cuts.backends.devices import find_target, open_device
from cuts.backends.source.emit import emit
from cuts.bench.operators.contenders import load_torch
from cuts.bench.operators.shapes import Case, gemm_cases
from cuts.bench.operators.timing import Contender, by_kernel, by_torch, in_order, in_turns, run_once, sets_for
from cuts.bench.tools.records import RESULTS, Row, circumstances, exit_code, geomean, write_rows
from cuts.ir.affine import Var, as_index
from cuts.ir.compiled import KernelFunction
from cuts.ir.errors import CutsError
from cuts.ir.expr import Const, Expr, Read, call
from cuts.ir.machine import Target
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.types import DType, TensorType
from cuts.passes.instructions import select_instructions
from cuts.passes.lowering import extract, lower
from cuts.passes.model import features_of
from cuts.passes.model.cost_model import estimate_time
from cuts.passes.model.lower_bound import lower_bound
from cuts.passes.schedule import choose


@frozen
class Format:
    """Storage type of operands, and math mode."""

    stored: DType
    math: str


FORMATS: Mapping[str, Format] = {
    "bf16": Format(DType.BF16, ""),
    "f16": Format(DType.F16, ""),
    "tf32": Format(DType.F32, "tf32"),
    "fp32x3": Format(DType.F32, "fp32x3"),
}


def product_group(format_: Format, shape: tuple[int, int, int, int], out: DType, gelu: bool = False) -> FusedGroup:
    """Return the group of a batched matrix product.

    It is y[b, m, n] = sum over k of a[b, m, k] * c[b, k, n], added up in f32 and stored as `out`, with `gelu` after it.
    """
    b, m, n, k = (Var(name, extent) for name, extent in zip("bmnk", shape, strict=True))
    first, second = (Read(t, tuple(as_index(v) for v in at)) for t, at in (("a", (b, m, k)), ("c", (b, k, n))))
    total = Reduction("t", (k,), "sum", call("mul", first, second), format_.math)
    axes = tuple(as_index(v) for v in (b, m, n))
    body: Expr = Read("t", axes)
    if gelu:
        tail = call("add", Const(1.0, DType.F32), call("erf", call("mul", body, Const(0.5**0.5, DType.F32))))
        body = call("mul", call("mul", body, Const(0.5, DType.F32)), tail)
    segment = Segment((b, m, n), (total,), (Output("y", axes, body),))
    kinds = {"a": (format_.stored, (b, m, k)), "c": (format_.stored, (b, k, n)), "t": (DType.F32, (b, m, n)),
             "y": (out, (b, m, n))}  # fmt: skip
    tensors = {name: TensorType(kind, tuple(v.extent for v in at)) for name, (kind, at) in kinds.items()}
    return FusedGroup((segment,), tensors, ("a", "c"), ("y",))


def listed_shapes() -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yield the listed products' batch, rows, columns, depth by name."""
    for case in gemm_cases():
        yield f"{case.name} b{case.batch}", _shape_of(case)


def _shape_of(case: Case) -> tuple[int, int, int, int]:
    first, second = case.inputs.values()
    return prod(first[:-2]), first[-2], second[-1], first[-1]


@frozen
class ProductBench:
    """Context of timed products."""

    device: Device
    target: Target
    torch: Any
    gelu: bool = False

    def row(self, name: str, format_name: str, shape: tuple[int, int, int, int], count: int) -> list[Row]:
        """Return a product's rows: the library's, then one for each point."""
        format_ = FORMATS[format_name]
        group = product_group(format_, shape, format_.stored, self.gelu)
        chosen = [candidate.schedule for candidate in choose(group, self.target, count=count)]
        schedules = {f"{number}: {describe_schedule(s)}": s for number, s in enumerate(chosen)}
        kernels = {label: extract(lower(group, s, {}, self.target)) for label, s in schedules.items()}
        functions = {label: emit(select_instructions(k, "cuda"), "cuda") for label, k in kernels.items()}
        sets = sets_for(sum(group.tensors[t].nbytes for t in "acy"), self.target.l2_bytes)
        memory = [self._tensors(group, number) for number in range(sets)]
        contenders = [self._library(group, format_, memory)]
        exact = self._exact(group, memory[0])
        errors: dict[str, float] = {}
        for label, function in functions.items():
            contenders.append(self._kernel(label, function, memory))
            errors[label] = self._error(group, memory[0], exact)
        times = in_turns(self.device, contenders)
        peer = times["torch"].median
        flops = 2.0 * prod(shape)
        rows: list[Row] = []
        for label, timing in times.items():
            row: Row = {"product": name, "format": format_name, "shape": list(shape), "point": label,
                        "us": timing.median * 1e6, "spread": timing.spread, "tflops": flops / timing.median / 1e12,
                        "over_torch": peer / timing.median, "error": errors.get(label)}  # fmt: skip
            if label in schedules:
                features = features_of(group, schedules[label], self.target)
                found = lower_bound(features, self.target)
                row |= {
                    "model_us": float(estimate_time(features, found, self.target)) * 1e6,
                    "bound_us": float(found.time) * 1e6,
                }
            rows.append(row)
        return rows

    def _tensors(self, group: FusedGroup, number: int) -> dict[str, Any]:
        """Return a set of tensors of PyTorch's with random values; results hold no number yet."""
        generator = self.torch.Generator("cuda").manual_seed(number)
        kinds = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16"}
        found = {}
        for name in "acy":
            type_ = group.tensors[name]
            kind = getattr(self.torch, kinds[type_.dtype])
            if name == "y":
                found[name] = self.torch.full(type_.shape, float("nan"), dtype=kind, device="cuda")
            else:
                values = self.torch.randn(type_.shape, generator=generator, device="cuda", dtype=self.torch.float32)
                found[name] = values.to(kind)
        return found

    def _library(self, group: FusedGroup, format_: Format, memory: Sequence[Mapping[str, Any]]) -> Contender:
        """Record PyTorch's product on every set; strict fp32 beside `fp32x3`, TF32 beside TF32."""
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = format_.math == "tf32"
        results = [torch.empty_like(m["a"] @ m["c"]) for m in memory]

        def run(tensors: Mapping[str, Any], result: Any) -> Any:
            product = torch.matmul(tensors["a"], tensors["c"], out=result)
            return torch.nn.functional.gelu(product) if self.gelu else product

        return by_torch(
            self.device, torch, "torch", [partial(run, m, result) for m, result in zip(memory, results, strict=True)]
        )

    def _kernel(self, label: str, function: KernelFunction, memory: Sequence[Mapping[str, Any]]) -> Contender:
        launches = by_kernel(self.device, function, None, memory)
        run_once(self.device, self.torch, launches[0], memory[0]["y"])
        return Contender(label, self.device.capture(in_order(launches)), len(memory))

    def _exact(self, group: FusedGroup, tensors: Mapping[str, Any]) -> Any:
        product = tensors["a"].double() @ tensors["c"].double()
        return self.torch.nn.functional.gelu(product) if self.gelu else product

    def _error(self, group: FusedGroup, tensors: Mapping[str, Any], exact: Any) -> float:
        return float((tensors["y"].double() - exact).norm() / exact.norm())


def describe_schedule(schedule: Schedule) -> str:
    """Return a schedule in a few words."""
    segment = schedule.segments[0]
    loop = segment.reductions[0] if segment.reductions else None
    tile = "x".join(f"{d.block}/{d.thread}" for d in segment.dims if d.block > 1)
    if loop is None or not loop.dims:
        return tile
    pads = ",".join(str(s.pad) for s in loop.staging)
    return f"{loop.mma or 'scalar'} {tile} k{loop.dims[0].block_k} x{loop.stages} ahead {loop.prefetch} pads {pads}"


def table(rows: Sequence[Row]) -> str:
    """Return rows as text, by product, with the geometric mean speed-up.

    It is that of the best points over PyTorch.
    """
    lines = []
    best: dict[tuple[str, str], float] = {}
    for row in rows:
        key = row["product"], row["format"]
        if row["point"] == "torch":
            lines.append(f"{row['product']} {row['format']}")
        else:
            best[key] = max(best.get(key, 0.0), row["over_torch"])
        model = f"  model {row['model_us']:.1f}" if "model_us" in row else ""
        error = "" if row["error"] is None else f"  error {row['error']:.2e}"
        lines.append(
            f"  {row['us']:>9.1f} us {row['tflops']:>7.1f} TFLOP/s {row['over_torch']:>6.3f} of torch{model}{error}  "
            f"{row['point']}"
        )
    for format_ in FORMATS:
        found = [value for (_, name), value in best.items() if name == format_ and value > 0]
        if found:
            lines.append(f"{format_}: best points over torch, geometric mean of {len(found)}: {geomean(found):.3f}")
    return "\n".join(lines)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="rows, columns and depth of the square product")
    parser.add_argument("--shape", default="", metavar="MxNxK", help="rows, columns and depth of one product instead")
    parser.add_argument("--gelu", action="store_true", help="with gelu after the product")
    parser.add_argument("--list", action="store_true", help="the benchmark's list of products instead of a square")
    parser.add_argument("--only", default="", metavar="TEXT", help="products of the list whose name contains this")
    parser.add_argument("--format", action="append", choices=tuple(FORMATS), help="a format; may be repeated")
    parser.add_argument("--count", type=int, default=8, help="how many schedules are timed")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS", help="end after this")
    parser.add_argument("--target", default="cuda:device")
    parser.add_argument("--commit", default="", help="what rows say of the version, where there is no git")
    parser.add_argument("--out", type=Path, default=RESULTS / "products.json", help="the file of rows")
    return parser.parse_args(argv)


def main() -> None:
    """Time the requested products and print the table.

    The file grows with every product.
    """
    options, started = arguments(), time.monotonic()
    target = find_target(options.target)
    device = open_device(target)
    bench = ProductBench(device, target, load_torch(), options.gelu)
    facts = circumstances(device.name, options.commit)
    square = (f"square {options.size}", (1, options.size, options.size, options.size))
    if options.shape:
        m, n, k = map(int, options.shape.split("x"))
        square = (f"{options.shape}{' gelu' * options.gelu}", (1, m, n, k))
    shapes = [s for s in listed_shapes() if options.only in s[0]] if options.list else [square]
    rows: list[Row] = []
    for name, shape in shapes:
        for format_ in options.format or FORMATS:
            if time.monotonic() - started > options.limit:
                break
            try:
                found = bench.row(name, format_, shape, options.count)
            except CutsError as error:
                print(f"{name} {format_}: {error.message}", file=sys.stderr)
                continue
            rows += [row | facts for row in found]
            write_rows(options.out, rows)
            print(table(found).splitlines()[-1], name, flush=True)
    print(table(rows))


if __name__ == "__main__":
    sys.exit(exit_code(main))
