"""Constants that kernels read only through views belong to the plan.

They keep their memory.
"""

from __future__ import annotations

import cuts
import numpy as np
from cuts.ir.graph import Graph, Node
from cuts.ir.types import DType, TensorType
from cuts.ops.language import Registry
from cuts.tests.needs import needs_opencl


@needs_opencl
def test_recurrence_begins_with_its_given_constant() -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (1, 1, 256), "w": (2, 32, 256), "r": (2, 32, 8), "b": (2, 64), "h": (2, 1, 8), "c": (2, 1, 8)}
    arrays = {name: rng.standard_normal(shape).astype(np.float32) / 10 for name, shape in shapes.items()}
    types = {name: TensorType(DType.F32, shape) for name, shape in shapes.items()}
    operands = ("x", "w", "r", "b", None, "h", "c", None)
    attributes = {"direction": "bidirectional"}
    node = Node("it", "lstm", operands, (), attributes)
    found = Registry.builtin().instances.infer(node, [types[name] if name else None for name in operands])
    results = tuple(f"y{n}" for n in range(len(found)))
    given = {"x": arrays.pop("x")}
    graph = Graph(
        "g",
        ("x",),
        ("y0",),
        types | dict(zip(results, found, strict=True)),
        (Node("it", "lstm", operands, results, attributes),),
        arrays,
    )
    plan = cuts.build(graph, target="opencl")
    np.testing.assert_allclose(plan.run(given)["y0"], plan.reference(given)["y0"], rtol=1e-4, atol=1e-5)
