"""PyTorch's operations in all element types and at their extremes.

Every call that PyTorch takes is captured, imported and evaluated by the reference. A fixed sample runs by default, all
of them with `CUTS_HYPOTHESIS_PROFILE=nightly`.
"""

from __future__ import annotations

import logging
import os
import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.frontends.torch.decompositions import decompositions
from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading.load import graph_of_nodes
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx

from .torch_calls import EXACT, TYPES, Case, cases

pytestmark = pytest.mark.filterwarnings("ignore")  # tracing warns about PyTorch's own insides
WHOLE = os.environ.get("CUTS_HYPOTHESIS_PROFILE") == "nightly"
_SAMPLE = 30  # calls of each element type, others of each
_MIN_COMPARED_SHARE = 0.5  # part of them that PyTorch computes and traces: it refuses some types, but not most
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

#: Roundings of the arithmetic that PyTorch uses; of doubles its vectorised functions keep fewer digits than NumPy's.
_ULPS = {"bfloat16": 16, "float16": 16, "float32": 16, "float64": 4096}


def tensors(found: Any) -> list[Any]:
    return list(found) if isinstance(found, (tuple, list)) else [found]


def by_pytorch(case: Case) -> list[Any] | None:
    """Return PyTorch's results of a case, None without comparable ones.

    PyTorch may refuse it, or return a type that we do not have.
    """
    try:
        found = tensors(case.function(*case.operands))
    except (RuntimeError, NotImplementedError, IndexError, TypeError):
        return None
    return found if all(v.dtype in TYPES for v in found) else None


def by_pytorch_in_f64(case: Case, like: list[Any]) -> list[Any]:
    """Return PyTorch's results in f64, the truth where it rounds."""
    wide = [x if x.dtype is torch.bool else x.double() for x in case.operands]
    function = next((exact for call, exact in EXACT.items() if case.name.startswith(call)), case.function)
    try:
        found = tensors(function(*wide))
    except RuntimeError:
        return like
    return [v.to(a.dtype) if a.dtype.is_floating_point else a for v, a in zip(found, like, strict=True)]


def by_import(case: Case) -> list[Any] | None:
    """Return the imported graph's results, None where PyTorch cannot trace."""
    function = torch.func.functionalize(lambda *operands: tuple(tensors(case.function(*operands))))
    try:
        traced = make_fx(function, decomposition_table=decompositions(), tracing_mode="fake")(*case.operands)
    except RuntimeError:
        return None
    captured = graph_of_nodes(traced.graph)
    given = {name: array_of(x) for name, x in zip(captured.inputs, case.operands, strict=True) if name is not None}
    found = evaluate_graph(captured.graph, captured.registry, given)
    types = captured.graph.types
    return [None if name is None else found[name].astype(types[name].dtype.numpy) for name in captured.results]


def agrees(found: Any, *truths: Any) -> bool:
    """Return whether every element is near one of the truths.

    It compares exactly for integers and where no number is near another.
    """
    if found.dtype.name not in _ULPS:
        return bool((found == truths[0]).all())
    ends = ml_dtypes.finfo(found.dtype)
    rounding, found = float(ends.eps) * _ULPS[found.dtype.name], found.astype(np.float64)
    with np.errstate(all="ignore"):
        near = np.zeros(found.shape, np.bool_)
        for truth in (truth.astype(np.float64) for truth in truths):
            bound = rounding * np.abs(truth) + float(ends.tiny)
            near |= (found == truth) | (np.isnan(found) & np.isnan(truth)) | (np.abs(found - truth) <= bound)
    return bool(near.all())


def fault(case: Case) -> str | None:
    """Return the fault in the import of a call, or "".

    Returns None where PyTorch has no answer.
    """
    wanted = by_pytorch(case)
    results = None if wanted is None else by_import(case)
    if wanted is None or results is None:
        return None
    for found, truth, wide in zip(results, wanted, by_pytorch_in_f64(case, wanted), strict=True):
        if found is None:
            continue
        if (found.dtype, found.shape) != (array_of(truth).dtype, tuple(truth.shape)):
            return f"{case.name}: {truth.dtype}{tuple(truth.shape)}, found {found.dtype}{found.shape}"
        if not agrees(found, array_of(truth), array_of(wide)):
            return f"{case.name}: expected {truth.tolist()}, found {found.tolist()}"
    return ""


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_an_imported_call_gives_what_pytorch_gives(kind: Any) -> None:
    drawn = list(cases(kind))
    if not WHOLE:
        drawn = random.Random(str(kind)).sample(drawn, _SAMPLE)
    found = list(map(fault, drawn))
    assert [text for text in found if text] == []
    assert sum(text is not None for text in found) > len(found) * _MIN_COMPARED_SHARE


def test_boolean_product_is_any_of_both() -> None:
    chosen = [case for case in cases(torch.bool) if case.name.startswith("product")]
    assert len(chosen) > 1
    assert [text for text in map(fault, chosen) if text] == []


def test_tanh_gelu_is_precise_below_zero() -> None:
    chosen = [case for kind in TYPES[:3] for case in cases(kind) if case.name.startswith("gelu tanh")]
    assert [text for text in map(fault, chosen) if text] == []
