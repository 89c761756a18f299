"""ONNX's own node tests: every one in scope computes what it expects, on the reference and on generated kernels.

What is out of scope is listed with its reasons in `golden/test_what_is_out_of_scope.txt`. Kernels run a case of every operation;
`CUTS_HYPOTHESIS_PROFILE=nightly` runs all of them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from cuts.frontends.onnx_backend import ReferenceBackend, out_of_scope  # noqa: E402  # onnx is optional
from cuts.onnx_backend import CutsBackend  # noqa: E402
from cuts.tests.needs import DEVICES  # noqa: E402
from onnx import numpy_helper  # noqa: E402

LEAST_IN_SCOPE = 1180

#: Cases that expect what nobody else can compute.
DISPUTED = {
    "test_l2normalization_axis_0": "0 / 0 taken as 0, which only newer editions of the standard say",
    "test_resize_downsample_scales_linear_align_corners": "uses the fractional output length, ONNX Runtime the whole one",
    "test_training_dropout_default": "expects the numbers of NumPy's generator",
    "test_training_dropout_default_mask": "expects the numbers of NumPy's generator",
    "test_training_dropout": "expects the numbers of NumPy's generator",
    "test_training_dropout_mask": "expects the numbers of NumPy's generator",
    "test_dynamicquantizelinear": "expects a tie of single precision to be rounded as such, which exact arithmetic has not",
}
#: Operations that stay outside the vocabulary, and why.
REASONS = {
    "BitCast": "reinterprets bytes, which are no elements",
    "Col2Im": "a gradient (of im2col), which is derived and not declared",
    "DeformConv": "not declared",
    "Det": "a factorisation, whose steps depend on values",
    "ImageDecoder": "decodes files",
    "Loop": "a loop whose length depends on values",
    "NonMaxSuppression": "how many boxes stay depends on values",
    "NonZero": "the shape of the result depends on values",
    "Optional": "optional values",
    "OptionalGetElement": "optional values",
    "RandomUniformLike": "expects the numbers of NumPy's generator",
    "RoiAlign": "not declared",
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
#: What an importer's message says, and the reason in words.
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


def reason(case: Any) -> str:
    """Return why a case is out of scope, in words; an empty text where it is in scope."""
    if case.name in DISPUTED:
        return DISPUTED[case.name]
    inputs = dict(zip((value.name for value in case.model.graph.input), case.data_sets[0][0], strict=False))
    message = out_of_scope(case.model, inputs)
    if "not supported: " in message:
        name = message.split("not supported: ")[1].split(" ")[0]
        return f"{name}: {REASONS.get(name, 'not listed')}"
    found = next((words for part, words in MESSAGES.items() if part in message), None)
    if found is None and "element type " in message:
        return f"element type {message.split('element type ')[1].split(' ')[0].lower()}"
    return found or message


@cache
def scope() -> dict[str, str]:
    """Map the name of every case to the reason that it is out of scope."""
    return {case.name: reason(case) for case in cases()}


def in_scope() -> Iterator[Any]:
    return (case for case in cases() if not scope()[case.name])


def complaint(case: Any, backend: type[ReferenceBackend]) -> str:
    """Return what is wrong with the outputs of a case: the standard's tolerance, and a few roundings of the largest element."""
    inputs, outputs = case.data_sets[0]
    found = backend.run_model(case.model, inputs)
    for result, value in zip(found, outputs, strict=True):
        expected = np.asarray(numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value)
        if result.shape != expected.shape or result.dtype != expected.dtype:
            return f"{case.name}: expected {expected.dtype}{list(expected.shape)}, found {result.dtype}{list(result.shape)}"
        rounding = 0.0
        if expected.dtype.kind == "f" and expected.size:
            finite = np.abs(expected[np.isfinite(expected)]).max(initial=0)
            rounding = 4 * float(np.finfo(expected.dtype).eps) * float(finite)
        if not np.allclose(result.astype(float), expected.astype(float), rtol=case.rtol, atol=case.atol + rounding, equal_nan=True):
            return f"{case.name}: off by {np.nanmax(np.abs(result.astype(float) - expected.astype(float)))}"
    return ""


def check(chosen: list[Any], backend: type[ReferenceBackend], name: str) -> None:
    wrong = [text for text in (complaint(case, backend) for case in chosen) if text]
    print(f"{name}: {len(chosen) - len(wrong)} passed of {len(chosen)} in scope ({len(cases())} node tests)")
    assert wrong == []


def test_what_is_out_of_scope(golden: Callable[[str], None]) -> None:
    golden("".join(f"{name}: {why}\n" for name, why in scope().items() if why))
    assert sum(not why for why in scope().values()) >= LEAST_IN_SCOPE


def test_the_reference_computes_what_every_case_in_scope_expects() -> None:
    check(list(in_scope()), ReferenceBackend, "reference")


@pytest.mark.parametrize("device", DEVICES)
def test_kernels_compute_what_the_cases_expect(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTS_ONNX_TARGET", device)
    chosen = list(in_scope())
    if os.environ.get("CUTS_HYPOTHESIS_PROFILE") != "nightly":
        first: dict[str, Any] = {}
        for case in chosen:
            first.setdefault(case.model.graph.node[0].op_type, case)
        chosen = list(first.values())
    check(chosen, CutsBackend, device)
