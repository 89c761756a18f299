"""Rows of the suite of single operations.

They are gradients of convolutions, all cases, and samples of them.

Data gradients are of class `dgrad`, filter gradients of class `wgrad`. As in a training step, neither operand is known
when they are compiled. The declaration of a row is derived from that of the convolution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from attrs import evolve, frozen
from cuts.bench.operators.shapes import (
    LISTS,
    Case,
    Step,
    chain_case,
    convolution_case,
    convolution_cases,
    dense_cases,
    gemm_cases,
    memory_cases,
    read_convolution,
    single,
)
from cuts.ir.graph import Attribute, Node
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.gradient.gradients import Gradients

#: Batches that networks are trained with.
TRAINING_BATCHES = (16, 64)
#: The class of rows for the gradient of each operand.
KINDS = ("dgrad", "wgrad")
#: Names in rows for the operands of a convolution, and the gradient of its result.
OPERANDS, RESULT_GRADIENT = ("x", "w"), "dy"


@frozen
class GradientCase(Case):
    """Gradient of a convolution's operand `position`.

    Its operands have the shapes `forward`; `nodes` have the attributes of that convolution.
    """

    forward: tuple[tuple[int, ...], ...] = ()
    position: int = 0

    @property
    def sources(self) -> tuple[Source, ...]:
        """The derived declaration, and those that its algorithms need."""
        _, texts = self._derived
        return texts

    @property
    def steps(self) -> tuple[Step, ...]:
        """The node of the derived declaration."""
        node, _ = self._derived
        return ((node.op, tuple(map(str, node.inputs)), node.outputs[0], {}),)

    @property
    def _derived(self) -> tuple[Node, tuple[Source, ...]]:
        return _derive(self.forward, tuple(sorted(self.nodes[0][3].items())), self.position, self.dtype)


@cache
def _derive(
    shapes: tuple[tuple[int, ...], ...], attributes: tuple[tuple[str, Attribute], ...], position: int, dtype: DType
) -> tuple[Node, tuple[Source, ...]]:
    """Return the node that computes a gradient, and the declarations that it needs."""
    gradients = Gradients(Registry.builtin())
    instance = gradients.registry["conv"].instantiate([TensorType(dtype, s) for s in shapes], dict(attributes))
    (step,) = gradients.steps(instance, (OPERANDS[position],), ("y",))
    texts = tuple(Source(f"{name}.cuts", text) for name, text in gradients.texts.items())
    return Node(step.name, step.op, step.inputs, ("y",)), texts


def gradient_cases(batches: Iterable[int] = TRAINING_BATCHES) -> Iterator[Case]:
    """Yield data, then filter gradients of the networks' distinct convolutions."""
    for batch in batches:
        for position, kind in enumerate(KINDS):
            for case in convolution_cases((batch,)):
                yield gradient_case(case, position, kind)


def gradient_case(case: Case, position: int, kind: str) -> GradientCase:
    """Return the case of the gradient of an operand of a convolution."""
    ((op, _, _, attributes),) = case.nodes
    image, weight = case.inputs.values()
    strides, pads = pair(attributes["strides"]), pair(attributes["pads"])
    result = (image[0], weight[0], *(_extent(*e) for e in zip(image[2:], weight[2:], strides, pads, strict=True)))
    other = OPERANDS[1 - position]
    inputs = {other: (image, weight)[1 - position], RESULT_GRADIENT: result}
    nodes = ((op, tuple(inputs), "y", attributes),)
    return GradientCase(
        kind, case.name, case.batch, inputs, nodes, dict(case.uses), forward=(image, weight), position=position
    )


def pair(value: object) -> tuple[int, int]:
    """Return an attribute's values for rows and for columns."""
    assert isinstance(value, tuple)
    return int(value[0]), int(value[1])


def _extent(size: int, kernel: int, stride: int, pad: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1


#: Every class of rows.
CLASSES = ("conv", "depthwise", "gemm", "gemv", "memory", *KINDS)


def sample_cases(cases: Iterable[Case], every: int) -> list[Case]:
    """Return every few cases of each class and batch size."""
    counts: Counter[tuple[str, int]] = Counter()
    chosen = []
    for case in cases:
        if counts[case.kind, case.batch] % every == 0:
            chosen.append(case)
        counts[case.kind, case.batch] += 1
    return chosen


def listed_cases(name: str) -> list[Case]:
    """Return the cases of a list in `cases.toml`."""
    return [_read_case(row) for row in LISTS["lists"][name]]


def _read_case(row: Mapping[str, Any]) -> Case:
    if "chain" in row:
        rows, columns = row["chain"]
        return chain_case(row["memory"], (rows, columns))
    if "op" not in row:
        case = convolution_case(read_convolution(row["conv"])[0], row.get("batch", 1))
        position = OPERANDS.index(row.get("gradient", "x"))
        return gradient_case(case, position, KINDS[position]) if "gradient" in row else case
    kind = next(name for name in CLASSES if name in row)
    shapes = tuple(tuple(map(int, shape.split("x"))) for shape in row["shapes"].split())
    table = LISTS["attributes"].get(row.get("attributes"), {})
    attributes = {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
    case = single(kind, row[kind], 1, row["op"], shapes, attributes, row.get("weights", 0))
    return evolve(case, precision=row.get("precision", "fp32"))


def all_cases() -> list[Case]:
    """Return every row of the benchmark."""
    return [*convolution_cases(), *gemm_cases(), *dense_cases(), *memory_cases(), *gradient_cases()]
