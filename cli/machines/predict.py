"""`cuts predict`: predicted times of layers and models on any GPU."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Sequence
from pathlib import Path

from attrs import asdict

from ...backends import find_target
from ...compile import build_graph, load_model, load_spec
from ...ir import CompileOptions, UsageError
from ...latency import (
    PRECISIONS,
    STATES,
    Bucket,
    Curve,
    Line,
    ModelPrediction,
    OwnKernels,
    Plateau,
    Prediction,
    buckets,
    check_suffix,
    find_own_kernels,
    find_own_plans,
    find_predictor,
    planned_launches,
    plateaus,
    plot,
    predict,
    predict_model,
    sweep,
)
from ...passes.graph import Canonicalise
from ..options import add_json, add_shape
from ..output import console

#: Limit of the rows of a table of plateaus; `--json` has all.
_ROWS = 60


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="conv2d, linear, another operation that was profiled, or a model: an .onnx file, graph.json",
    )
    parser.add_argument(
        "sizes",
        nargs="*",
        metavar="NAME=VALUES",
        help="sizes: C=64, K=64,96, K=64..1024 or K=64..1024:8; the last range varies",
    )
    parser.add_argument("--target", default="h200", help="a machine whose layers were profiled (default h200)")
    parser.add_argument(
        "--precision", default="fp32", choices=PRECISIONS, help="how products are rounded (default fp32, strict)"
    )
    parser.add_argument(
        "--state",
        choices=STATES,
        help="the cache before a layer runs: empty, or its input just written (default cold; warm in models)",
    )
    add_shape(parser, "fix a model's input")
    parser.add_argument(
        "--kernels",
        default="library",
        choices=("library", "cuts"),
        help="whose kernels: the vendor library's (default), or those that cuts would tune (conv2d, models)",
    )
    parser.add_argument(
        "--buckets", action="store_true", help="say which sizes of the varied dimension deserve a kernel of their own"
    )
    parser.add_argument(
        "--waste", type=_share, default=0.05, metavar="SHARE", help="what padding to a bucket may cost (default 0.05)"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the curves to an .svg or .png file")
    add_json(parser)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 10:
        raise ArgumentTypeError(f"expected a share such as 0.05, found '{text}'")
    return value


def command(arguments: Namespace) -> int:
    """Predict a model, a sweep of convolutions, or one operation."""
    if arguments.plot:
        check_suffix(arguments.plot)
    if arguments.what == "conv2d":
        return _convolutions(arguments, sweep(arguments.sizes))
    if Path(arguments.what).suffix or arguments.what == "-":
        return _model(arguments)
    return _operation(arguments)


# ---- convolutions


def _convolutions(arguments: Namespace, curves: Sequence[Curve]) -> int:
    state = arguments.state or "cold"
    asked = _generated_kernels(arguments) or find_predictor(arguments.target, arguments.precision, state)
    found = [(curve, asked.convolutions(curve.layers)) for curve in curves]
    for text in dict.fromkeys(text for _, each in found for one in each for text in one.warnings[:1]):
        console.note(f"cuts: warning: {text}")
        break  # one is enough: rows are marked
    if arguments.plot:
        title = f"conv2d on {arguments.target}, {arguments.precision}, {state} cache"
        plot(arguments.plot, title, curves[0].along, [_line(curve, each) for curve, each in found])
    if arguments.json:
        console.print_json({"target": arguments.target, "precision": arguments.precision, "state": state,
                            "curves": [_curve_values(arguments, curve, each) for curve, each in found]})  # fmt: skip
        return 0
    for curve, each in found:
        _print_curve(arguments, state, curve, each)
    return 0


def _generated_kernels(arguments: Namespace) -> OwnKernels | None:
    """Return the model of generated kernels, on request."""
    if arguments.kernels == "library":
        return None
    _check_tuned(arguments)
    return find_own_kernels(arguments.target)


def _check_tuned(arguments: Namespace) -> None:
    if arguments.precision != "fp32" or arguments.state:
        raise UsageError("kernels of cuts were tuned in strict fp32", hint="leave out --precision and --state")


def _steps(curve: Curve, found: Sequence[Prediction]) -> tuple[Plateau, ...]:
    """Return the runs of sizes with the same kernels and blocks; tuned kernels have no known tile, so each is one."""
    return plateaus(curve.sizes, [(each.kernels, each.blocks or -i) for i, each in enumerate(found)])


def _line(curve: Curve, found: Sequence[Prediction]) -> Line:
    changes = [each.begin for each in plateaus(curve.sizes, [each.kernels for each in found])][1:]
    us, low, high = (tuple(getattr(each, name) for each in found) for name in ("us", "low", "high"))
    return Line(_fixed_text(curve), curve.sizes, us, low, high, tuple(changes))


def _fixed_text(curve: Curve) -> str:
    return " ".join(f"{name}={value}" for name, value in curve.fixed.items())


def _buckets(arguments: Namespace, curve: Curve, found: Sequence[Prediction]) -> tuple[Bucket, ...]:
    import numpy as np

    return buckets(curve.sizes, np.array([each.us for each in found]), arguments.waste)


def _curve_values(arguments: Namespace, curve: Curve, found: Sequence[Prediction]) -> dict[str, object]:
    points = [{curve.along: size, **asdict(each)} for size, each in zip(curve.sizes, found, strict=True)]
    steps = [{"first": each.first, "last": each.last} for each in _steps(curve, found)]
    chosen = [asdict(each) for each in _buckets(arguments, curve, found)] if arguments.buckets else []
    return {"fixed": dict(curve.fixed), "along": curve.along, "points": points, "steps": steps, "buckets": chosen}


def _print_curve(arguments: Namespace, state: str, curve: Curve, found: Sequence[Prediction]) -> None:
    steps = _steps(curve, found)
    rows = [_step_row(step, found) for step in steps[:_ROWS]]
    title = f"conv2d {_fixed_text(curve)} on {arguments.target}, {arguments.precision}, {state} cache"
    title += f": {console.count(len(steps), 'step')}"
    columns = [curve.along, "microseconds", "90 % interval", "blocks", "sure", "kernel", ""]
    console.output_console().print(console.table(title, columns, rows))
    if len(steps) > _ROWS:
        console.note(f"{len(steps) - _ROWS} further steps are left out; --json prints all")
    if arguments.buckets:
        chosen = _buckets(arguments, curve, found)
        rows = [
            [f"{each.first}..{each.last}", str(each.last), f"{each.us:.1f}", f"{100 * each.waste:.1f} %"]
            for each in chosen
        ]
        title = f"buckets of {curve.along} that cost at most {100 * arguments.waste:g} % more: "
        title += f"{len(chosen)} kernels for {len(curve.sizes)} sizes"
        console.output_console().print(console.table(title, ["sizes", "padded to", "microseconds", "most waste"], rows))


def _step_row(step: Plateau, found: Sequence[Prediction]) -> list[str]:
    own = found[step.begin : step.end]
    first, last = own[0], own[-1]
    times = (
        f"{first.us:.1f}"
        if len(own) == 1 or f"{first.us:.1f}" == f"{last.us:.1f}"
        else f"{first.us:.1f} to {last.us:.1f}"
    )
    interval = f"{min(each.low for each in own):.1f} to {max(each.high for each in own):.1f}"
    sizes = str(step.first) if step.first == step.last else f"{step.first}..{step.last}"
    doubt = "outside of the profile" if any(each.warnings for each in own) else ""
    return [sizes, times, interval, str(last.blocks), f"{100 * last.confidence:.0f} %", short(last.kernels), doubt]


def short(kernels: Sequence[str]) -> str:
    """Return the main kernel's short name, its tile, and further kernels' number."""
    if not kernels:
        return ""
    main = max(kernels, key=lambda name: ("gemm" in name or "convolve" in name or "fprop" in name, len(name)))
    name = re.sub(r"\(anonymous namespace\)::|std::enable_if<[^>]*>::type |^void ", "", main).split("(")[0]
    tile = re.search(r"\d+x\d+(x\d+|_\d+x\d+)?", name)
    inner = re.search(r"(cutlass_[a-z0-9_]+?)_\d+x\d+", name)
    family = inner[1] if inner else re.split(r"_f32f32|_tf32f32|_cf32cf32|<", name)[0].removeprefix("at::native::")
    more = f" (+{len(kernels) - 1})" if len(kernels) > 1 else ""
    return console.brief(family, 60) + (f" {tile[0]}" if tile else "") + more


# ---- one operation, a model


def _operation(arguments: Namespace) -> int:
    sizes: dict[str, int] = {}
    for token in arguments.sizes:
        name, equals, value = token.partition("=")
        if not equals or not (value.isascii() and value.isdecimal()):
            raise UsageError(f"expected sizes like rows=16, found '{token}'", hint="ranges are for conv2d")
        if name in sizes:
            raise UsageError(f"size '{name}' is given twice")
        sizes[name] = int(value)
    if arguments.kernels == "cuts":
        raise UsageError(f"kernels of cuts were tuned for conv2d, not for {arguments.what}", hint="leave out --kernels")
    state = arguments.state or "cold"
    found = predict(arguments.what, sizes, arguments.target, precision=arguments.precision, state=state)
    if arguments.json:
        console.print_json({"op": arguments.what, "sizes": sizes, "target": arguments.target, **asdict(found)})
        return 0
    for text in found.warnings:
        console.note(f"cuts: warning: {text}")
    print(
        f"{arguments.what} {' '.join(arguments.sizes)}: {found.us:.1f} us "
        f"({found.low:.1f} to {found.high:.1f}) {short(found.kernels)}"
    )
    return 0


def _model(arguments: Namespace) -> int:
    if arguments.sizes:
        raise UsageError(
            f"a model takes no sizes, found '{arguments.sizes[0]}'", hint="fix its inputs by --shape NAME=1x3x224x224"
        )
    spec = load_spec([])
    graph = load_model(arguments.what, spec, dict(arguments.shape))
    if arguments.kernels == "cuts":
        _check_tuned(arguments)
        model = find_own_plans(arguments.target)
        target = find_target(f"cuda:{arguments.target.removeprefix('cuda:')}")
        planned = planned_launches(build_graph(graph, spec, target, CompileOptions()).plan)
        # The batch is the first size of the first input.
        batch = next((size for name in graph.inputs for size in graph.types[name].shape), 1)
        found = model.predict(planned, batch)
    else:
        asked = find_predictor(arguments.target, arguments.precision, arguments.state or "warm")
        found = predict_model(Canonicalise(spec.instances).run(graph), asked)
    if arguments.json:
        layers = [{"name": each.layer.name, "op": each.layer.op, **asdict(each.prediction)} for each in found.layers]
        values = {
            "us": found.us,
            "low": found.low,
            "high": found.high,
            "launches": found.launches,
            "warnings": found.warnings,
        }
        console.print_json(
            {
                "model": arguments.what,
                "target": arguments.target,
                "precision": arguments.precision,
                **values,
                "layers": layers,
            }
        )
        return 0
    _print_model(arguments, found)
    return 0


def _print_model(arguments: Namespace, found: ModelPrediction) -> None:
    rows = []
    for each in found.layers:
        one, share = each.prediction, each.prediction.us / found.us if found.us else 0.0
        doubt = "doubtful" if one.warnings else ""
        rows.append(
            [
                each.layer.name,
                each.layer.op,
                f"{one.us:.1f}",
                f"{one.low:.1f} to {one.high:.1f}",
                f"{100 * share:.1f} %",
                short(one.kernels),
                doubt,
            ]
        )
    own = arguments.kernels == "cuts"
    count = f"{len(rows)} launches" if own else console.count(len(rows), "layer")
    title = f"{arguments.what} on {arguments.target}, {arguments.precision}: {count}"
    console.output_console().print(
        console.table(title, ["layer", "op", "microseconds", "90 % interval", "share", "kernel", ""], rows)
    )
    for text in found.warnings[:5]:
        console.note(f"cuts: warning: {text}")
    print(
        f"{found.us * 1e-3:.3f} ms ({found.low * 1e-3:.3f} to {found.high * 1e-3:.3f}), {found.launches} kernels, "
        + ("as planned without measurements" if own else "each layer as the library runs it alone")
    )
