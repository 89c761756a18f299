"""ONNX's own node tests: cases, scope with reasons, and comparison."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import onnx
from cuts.compile.build import build
from cuts.compile.onnx_backend import CutsBackend, target_name
from cuts.frontends.onnx.backend_representation import CompiledModel, ReferenceBackend, Runner, as_array, out_of_scope
from cuts.ir import DType, Graph
from cuts.runtime.plan import Plan
from cuts.tests.joint_builds import built_together
from onnx import numpy_helper

BACKENDS: dict[str, type[ReferenceBackend]] = {"reference": ReferenceBackend, "opencl": CutsBackend}

#: Cases whose expected outputs no other implementation computes.
DISPUTED_CASES = {
    "test_l2normalization_axis_0": "0 / 0 taken as 0, which only newer editions of the standard say",
    "test_resize_downsample_scales_linear_align_corners": "uses the fractional output length, ONNX Runtime the whole "
    "one",
    "test_training_dropout_default": "expects the numbers of NumPy's generator",
    "test_training_dropout_default_mask": "expects the numbers of NumPy's generator",
    "test_training_dropout": "expects the numbers of NumPy's generator",
    "test_training_dropout_mask": "expects the numbers of NumPy's generator",
    "test_dynamicquantizelinear": "expects a tie of single precision to be rounded as such, which exact arithmetic has "
    "not",
}
#: Operations that stay outside the vocabulary, and why.
REASONS = {
    "BitCast": "reinterprets bytes, which are no elements",
    "ImageDecoder": "decodes files",
    "Loop": "a loop whose length depends on values",
    "NonMaxSuppression": "how many boxes stay depends on values",
    "NonZero": "the shape of the result depends on values",
    "Optional": "optional values",
    "OptionalGetElement": "optional values",
    "RandomUniformLike": "expects the numbers of NumPy's generator",
    "SplitToSequence": "sequences",
    "TfIdfVectorizer": "counts n-grams of texts",
    "Unique": "the shape of the result depends on values",
    "ai.onnx.ml.ArrayFeatureExtractor": "classical machine learning",
    "ai.onnx.ml.Binarizer": "classical machine learning",
    "ai.onnx.ml.TreeEnsemble": "classical machine learning",
    "ai.onnx.preview.FlexAttention": "a preview, with subgraphs",
    "ai.onnx.preview.training.Adagrad": "a preview; training goes through cuts.grad",
    "ai.onnx.preview.training.Adam": "a preview; training goes through cuts.grad",
    "ai.onnx.preview.training.Momentum": "a preview; training goes through cuts.grad",
}
#: Parts of an importer's message, and the reason in words.
MESSAGES = {
    "element type object": "strings",
    "found list": "sequences",
    "expected a tensor, found": "optional values",
    "is a sequence of tensors": "sequences",
    "only the form since operator set 9": "the first form of Scan",
    "known rank": "optional values",
    "(value) must be a constant": "a padding value that is computed",
}


@cache
def cases() -> tuple[Any, ...]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx.backend.test.case.node as node_cases

        return tuple(case for case in node_cases.collect_testcases(None) if not case.name.endswith("_expanded"))


def inputs_of(case: Any) -> dict[str, Any]:
    """Return the inputs of a case by name."""
    return dict(zip((value.name for value in case.model.graph.input), case.data_sets[0][0], strict=False))


def arrays_of(case: Any) -> dict[str, Any]:
    """Return the inputs of a case as arrays."""
    return {name: as_array(name, value) for name, value in inputs_of(case).items()}


def reason(case: Any) -> str:
    """Return the reason why a case is out of scope, or ""."""
    if case.name in DISPUTED_CASES:
        return DISPUTED_CASES[case.name]
    message = out_of_scope(case.model, inputs_of(case))
    if "not supported: " in message:
        name = message.split("not supported: ")[1].split(" ")[0]
        return f"{name}: {REASONS.get(name, 'not listed')}"
    found = next((words for part, words in MESSAGES.items() if part in message), None)
    if found is None and "element type " in message:
        return f"element type {message.split('element type ')[1].split(' ')[0].lower()}"
    return found or message


@cache
def scope() -> dict[str, str]:
    """Map the name of every case to its reason, "" in scope."""
    return {case.name: reason(case) for case in cases()}


def in_scope() -> Iterator[Any]:
    return (case for case in cases() if not scope()[case.name])


def complaint(case: Any, model: CompiledModel) -> str:
    """Return the fault in the outputs of a case, or "".

    The tolerance is the standard's, and a few roundings of the largest element.
    """
    inputs, outputs = case.data_sets[0]
    for result, value in zip(model.run(inputs), outputs, strict=True):
        expected = np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)
        if result.shape != expected.shape or result.dtype != expected.dtype:
            wanted, got = (f"{array.dtype}{list(array.shape)}" for array in (expected, result))
            return f"{case.name}: expected {wanted}, found {got}"
        rounding = 0.0
        # To NumPy bfloat16 is no kind of real number ("V"), and has no `np.finfo`.
        if (expected.dtype.kind == "f" or expected.dtype == DType.BF16.numpy) and expected.size:
            finite = np.abs(expected[np.isfinite(expected)].astype(float)).max(initial=0)
            rounding = 4 * float(ml_dtypes.finfo(expected.dtype).eps) * float(finite)
        if not np.allclose(
            result.astype(float), expected.astype(float), rtol=case.rtol, atol=case.atol + rounding, equal_nan=True
        ):
            return f"{case.name}: off by {np.nanmax(np.abs(result.astype(float) - expected.astype(float)))}"
    return ""


class Collecting(CutsBackend):
    """Backend on kernels that records the plans that it compiles."""

    plans: ClassVar[list[Plan]] = []

    @classmethod
    def compile_graph(cls, graph: Graph) -> Runner:
        plan = build(graph, target=target_name())
        cls.plans += [part.plan for part in plan.parts]
        return plan.run


def run_together(names: Sequence[str]) -> list[str]:
    """Return the fault of each case on OpenCL, with one joint build."""
    Collecting.plans.clear()
    models = {name: Collecting.prepare(case_of(name).model) for name in names}
    for name, model in models.items():
        attempt(name, partial(model.prepare, arrays_of(case_of(name))))  # the run below reports faults
    with built_together(Collecting.plans):
        return [attempt(name, partial(complaint, case_of(name), model)) for name, model in models.items()]


def attempt(name: str, work: Callable[[], Any]) -> str:
    """Return the result of some work, or its error, as a text."""
    try:
        return str(work())
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"


def interleave(names: list[str]) -> list[str]:
    """Interleave cases: the first of every operation, then the second,"""
    seen: dict[str, int] = {}
    turns: list[tuple[int, str]] = []
    for name in names:
        op = case_of(name).model.graph.node[0].op_type
        seen[op] = seen.get(op, 0) + 1
        turns.append((seen[op], name))
    return [name for _, name in sorted(turns, key=lambda turn: turn[0])]


@cache
def case_of(name: str) -> Any:
    """Return a case by its name."""
    return next(case for case in cases() if case.name == name)


def run_case(name: str, backend: str, deadline: float) -> str | None:
    """Return the fault of a case on a backend, for worker processes.

    Returns None where the deadline has passed.
    """
    if time.time() > deadline:
        return None
    return attempt(name, lambda: complaint(case_of(name), BACKENDS[backend].prepare(case_of(name).model)))
