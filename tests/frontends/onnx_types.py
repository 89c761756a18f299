"""Nodes of ONNX in every element type, for `test_onnx_types`.

Nothing here is listed by operation. ONNX's own node tests give shapes and attributes, its schemas the types that each
operand may have, our importer's table the operations; ONNX Runtime decides which of them it implements.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from attrs import frozen
from cuts.frontends.onnx.backend_representation import ReferenceBackend
from cuts.frontends.onnx.operators import TABLE
from cuts.ir.errors import CutsError
from cuts.ir.types import DType, dtype_of_numpy
from onnx.reference import ReferenceEvaluator

from ..kernels.extremes import extremes
from .conformance import cases

Array = np.ndarray[Any, Any]
#: Node tests of an operation that are tried, at most.
SHAPES = 3
#: ONNX Runtime divides integers as the machine does, which ends the process at 0 and at -1.
_TRAPS = ("Div", "Mod")
#: ONNX Runtime computes with the roundings of the type itself, several of them in one operation.
_ULPS = 128
_SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 1.5, 2.5, -7.25, 1e-3)


@frozen
class Variant:
    """Node test in another element type.

    `kind` is the source of its numbers, "given" or "ends".
    """

    case: Any
    parameter: str
    dtype: DType
    kind: str

    @property
    def name(self) -> str:
        """Description of the variant."""
        return f"{self.case.name} {self.parameter}={self.dtype} {self.kind}"

    @property
    def node(self) -> Any:
        """Its only node."""
        return self.case.model.graph.node[0]

    @property
    def formals(self) -> dict[str, str]:
        """Type parameter of each operand, by the operand's name."""
        schema = _schema(self.case)
        pairs = ((name, schema.inputs[min(n, len(schema.inputs) - 1)]) for n, name in enumerate(self.node.input))
        return {name: formal.type_str for name, formal in pairs if name}

    def model(self) -> Any:
        """Return the model with operands of the type, and resulting types."""
        model = onnx.ModelProto()
        model.CopyFrom(self.case.model)
        code = onnx.helper.np_dtype_to_tensor_dtype(self.dtype.numpy)
        for value in model.graph.input:
            if self.formals.get(value.name) == self.parameter:
                value.type.tensor_type.elem_type = code
        for value in model.graph.output:
            value.ClearField("type")
        model.ir_version = min(model.ir_version, 10)
        return model

    def inputs(self) -> dict[str, Array]:
        """Return operands: those of the test, or ends of the type."""
        rng, made = np.random.default_rng(0), {}
        for number, (value, given) in enumerate(
            zip(self.case.model.graph.input, self.case.data_sets[0][0], strict=True)
        ):
            array = np.asarray(given)
            if self.formals.get(value.name) == self.parameter:
                array = self._numbers(rng, array, number)
            made[value.name] = array
        return made

    def _numbers(self, rng: np.random.Generator, given: Array, number: int) -> Array:
        if self.kind == "given":
            low = 0 if self.dtype.element.lowest == 0 else -100
            values = given if self.dtype.is_float else np.clip(np.nan_to_num(given.astype(float)), low, 100)
        else:
            values = rng.choice(np.array(_SPECIAL) if self.dtype.is_float else extremes(self.dtype), given.shape)
        if number and self.node.op_type in _TRAPS and self.dtype.is_int:
            values = np.where((values == 0) | (values == -1), 3, values)
        with np.errstate(all="ignore"):
            return np.asarray(values).astype(self.dtype.numpy)


def _schema(case: Any) -> Any:
    model = case.model
    versions = {opset.domain: opset.version for opset in model.opset_import}
    return onnx.defs.get_schema(model.graph.node[0].op_type, versions.get("", 1))


@cache
def variants() -> tuple[Variant, ...]:
    """Return every variant of the node tests of our operations."""
    return tuple(_variants())


def _variants() -> Iterator[Variant]:
    taken: dict[str, int] = {}
    for case in cases():
        graph = case.model.graph
        if len(graph.node) != 1 or graph.node[0].domain or graph.node[0].op_type not in TABLE:
            continue
        if not all(isinstance(np.asarray(v), np.ndarray) and dtype_of_numpy(np.asarray(v).dtype) for v in _data(case)):
            continue
        op = graph.node[0].op_type
        if taken.setdefault(op, 0) < SHAPES:
            taken[op] += 1
            yield from _in_every_type(case)


def _data(case: Any) -> list[Any]:
    given = case.data_sets[0][0]
    return [v if isinstance(v, np.ndarray | np.generic) else np.array("no tensor") for v in given]


def _in_every_type(case: Any) -> Iterator[Variant]:
    known = {f"tensor({_onnx_name(d)})": d for d in DType}
    for constraint in _schema(case).type_constraints:
        if constraint.type_param_str not in Variant(case, "", DType.F32, "").formals.values():
            continue
        for name in constraint.allowed_type_strs:
            if name in known:
                yield from (Variant(case, constraint.type_param_str, known[name], kind) for kind in ("given", "ends"))


def _onnx_name(dtype: DType) -> str:
    return {"f64": "double", "f32": "float"}.get(dtype.value, dtype.numpy.name)


# ---- both sides


def by_onnx_runtime(variant: Variant) -> list[Array] | None:
    """Return ONNX Runtime's results of a variant, None without an implementation."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(
            variant.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return [np.asarray(v) for v in session.run(None, variant.inputs())]
    except Exception:  # its bindings raise classes of their own
        return None


def by_import(variant: Variant) -> list[Array] | str:
    """Return the results of the imported graph, or the reason against it."""
    try:
        return [np.asarray(v) for v in ReferenceBackend.run_model(variant.model(), variant.inputs())]
    except CutsError as error:
        return f"refused: {error}"


def by_onnx_reference(variant: Variant) -> list[Array] | None:
    """Return the results of ONNX's reference, None without an implementation."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return [np.asarray(v) for v in ReferenceEvaluator(variant.model()).run(None, variant.inputs())]
    except Exception:  # any exception of NumPy
        return None


def agrees(ours: Array, theirs: Array) -> Array:
    """Return a mask of near elements.

    It compares exactly for integers and where no number is near another. ONNX Runtime computes some operations on
    doubles with constants of f32.
    """
    if theirs.dtype.kind != "f":
        return np.asarray(ours == theirs)
    eps = max(float(np.finfo(theirs.dtype).eps), float(np.finfo(np.float32).eps))
    with np.errstate(all="ignore"):
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        size = np.abs(b[np.isfinite(b)]).max(initial=0.0)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        same |= np.isfinite(a) & np.isfinite(b) & (np.abs(a - b) <= _ULPS * eps * (np.abs(b) + size / 4))
    return np.asarray(same)


def fault(variant: Variant) -> str:
    """Return the fault of a variant, "" where there is none.

    It is "" too where ONNX Runtime has no answer. Where ONNX's reference differs from ONNX Runtime (which drops some
    NaN, saturates sums of integers, computes their powers as doubles), either is right.
    """
    theirs = by_onnx_runtime(variant)
    if theirs is None:
        return ""
    ours = by_import(variant)
    if isinstance(ours, str):
        return f"{variant.name}: {ours}"[:400]
    other = by_onnx_reference(variant) or theirs
    for number, (mine, first) in enumerate(zip(ours, theirs, strict=False)):
        second = other[number] if other[number].shape == first.shape else first
        if (mine.dtype, mine.shape) != (first.dtype, first.shape):
            return f"{variant.name}: {first.dtype}{first.shape}, found {mine.dtype}{mine.shape}"
        good = agrees(mine, first) | agrees(mine, second.astype(first.dtype))
        if not good.all():
            return f"{variant.name}: {_first(~good, mine, first, second, variant.inputs())}"
    return ""


def _first(bad: Array, ours: Array, theirs: Array, other: Array, inputs: Mapping[str, Array]) -> str:
    at = tuple(np.argwhere(bad)[0])
    given = [a[at] for a in inputs.values() if a.shape == ours.shape]
    return f"at {[int(n) for n in at]} expected {theirs[at]!r} or {other[at]!r}, found {ours[at]!r} of {given}"
