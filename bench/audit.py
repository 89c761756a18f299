"""How sound the bound is and how good the order: points of small operations are timed, those pruning would keep and random ones.

Run it with `python bench/audit.py [TARGET] [POINTS]`. One JSON object per operation is printed: points timed, how many ran faster than
their lower bound (must be 0), the median of bound over time, the time of the model's first choice over the best time met, and the
position of the fastest point in the model's order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import numpy as np
from cuts.backends.device import Device, Pointer, open_device, time_kernel
from cuts.backends.emit import emit
from cuts.backends.targets import find_target
from cuts.ir.graph import Attribute, Graph, Node
from cuts.ir.schedule import Schedule
from cuts.ir.segment import FusedGroup
from cuts.ir.target import Target
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.passes.choose import assess, choose
from cuts.passes.enumerate import sampled, to_schedule
from cuts.passes.extract import extract
from cuts.passes.lower import lower
from cuts.passes.normalise import Illegal, normalise
from cuts.passes.programs import build_programs
from cuts.passes.prune import score
from cuts.passes.space import make_space

#: Operations: name, shapes of the operands, attributes.
CASES: dict[str, tuple[str, tuple[tuple[int, ...], ...], dict[str, Attribute]]] = {
    "conv 3x3": ("conv", ((1, 64, 28, 28), (64, 64, 3, 3)), {"pads": (1, 1, 1, 1)}),
    "conv 1x1": ("conv", ((1, 64, 28, 28), (128, 64, 1, 1)), {}),
    "depthwise": ("conv", ((1, 64, 28, 28), (64, 1, 3, 3)), {"groups": 64, "pads": (1, 1, 1, 1)}),
    "matmul": ("matmul", ((256, 256), (256, 256)), {}),
    "gemv": ("matmul", ((1, 512), (512, 1000)), {}),
    "softmax": ("softmax", ((256, 512),), {}),
    "pool": ("max_pool", ((1, 64, 56, 56),), {"kernel_shape": (2, 2), "strides": (2, 2)}),
    "add": ("add", ((64, 64, 64), (64, 64, 64)), {}),
}


def group_of(op: str, shapes: tuple[tuple[int, ...], ...], attributes: dict[str, Attribute]) -> FusedGroup:
    """Return the fused group of a single operation."""
    registry = Registry.builtin()
    types = {f"x{k}": TensorType(DType.F32, shape) for k, shape in enumerate(shapes)}
    types["y"] = registry[op].instantiate(list(types.values()), attributes).output_types[0]
    inputs = tuple(t for t in types if t != "y")
    programs = build_programs(Graph("audit", inputs, ("y",), types, (Node("node", op, inputs, ("y",), attributes),)), registry)
    group = normalise([s for u in programs.units for s in u.statements], programs.types, ["y"], programs.tables)
    assert not isinstance(group, Illegal), group.reason
    return group


def measure(device: Device, target: Target, group: FusedGroup, schedule: Schedule) -> float:
    """Return the least time of a point in seconds."""
    function = emit(extract(lower(group, schedule, {}, target)), target.dialect)
    generator = np.random.default_rng(0)
    values = {t: generator.standard_normal(group.tensors[t].shape).astype(np.float32) for t in (*group.inputs, *group.outputs)}
    values |= {t: np.asarray(v, dtype=np.int32) for t, v in function.tables.items()}
    places = {}
    for name, array in values.items():
        places[name] = Pointer(device.allocate(array.nbytes))
        device.upload(places[name], array)
    return time_kernel(device, function, [places[a.tensor] for a in function.arguments], repeats=10).best


def points(group: FusedGroup, target: Target, count: int) -> Iterator[tuple[float, Schedule]]:
    """Yield the model's first choice, its best points of every structure, and random legal ones, with their scores."""
    (first,) = choose(group, target)
    yield first.score, first.schedule
    space = make_space(group, target, coarse=True)
    generator = np.random.default_rng(0)
    share = max(1, count // (2 * len(space.structures)))
    for batch in sampled(space, 2048):
        assert batch.points is not None, "samples name their points"
        values = score(batch, space, "bound")
        order = np.argsort(values, kind="stable")[: int(np.isfinite(values).sum())]
        chosen = [*order[:share], *generator.permutation(order[share:])[:share]]
        for k in chosen:
            yield float(values[k]), to_schedule(space, batch.start + int(batch.points[k]))


def audit(device: Device, target: Target, name: str, count: int) -> dict[str, object]:
    """Time points of one operation and compare them with the model."""
    group = group_of(*CASES[name])
    rows = [(s, measure(device, target, group, c), assess(group, c, target).bound) for s, c in points(group, target, count)]
    scores, times, bounds = (np.asarray(column) for column in zip(*rows, strict=True))
    winner = int(np.argmin(times))
    return {
        "op": name,
        "target": target.name,
        "points": len(rows),
        "faster than their bound": int((times < bounds).sum()),
        "median bound / time": round(float(np.median(bounds / times)), 3),
        "first choice / best": round(float(times[0] / times.min()), 3),
        "best in us": round(float(times.min()) * 1e6, 2),
        "winner's position": f"{int((scores < scores[winner]).sum()) + 1} of {len(rows)}",
    }


def main() -> None:
    """Audit every case on a target's device."""
    target = find_target(sys.argv[1] if len(sys.argv) > 1 else "opencl")
    device = open_device(target)
    for name in CASES:
        print(json.dumps(audit(device, device.target, name, int(sys.argv[2]) if len(sys.argv) > 2 else 24)), flush=True)


if __name__ == "__main__":
    main()
