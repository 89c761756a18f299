"""Samples of PyTorch's operations, imported and computed by the reference.

PyTorch lists its operations with a generator of sample arguments for each (`op_db`). A sample is traced and imported as
a captured graph is, and the float64 reference computes it; eager PyTorch is the oracle, of gradients too.
"""

from __future__ import annotations

import logging
import random
import tomllib
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from attrs import frozen
from cuts.frontends.torch.decompositions import training_decompositions
from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading import graph_of_nodes
from cuts.ir import CutsError
from cuts.ops.reference import evaluate_graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

# The list's module forbids its process to set flags of backends, which other tests do.
with patch("torch.backends.disable_global_flags"):
    from torch.testing._internal.common_methods_invocations import op_db

#: Element types beside f32; an operation is sampled in f32 and in one of these.
OTHER_TYPES = (
    torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.bool,
)  # fmt: skip
#: Relative and absolute differences of float types: those of eager's own rounding.
TOLERANCES = {
    torch.float32: (2e-4, 1e-5), torch.float64: (1e-7, 1e-9), torch.float16: (1e-2, 2e-3),
    torch.bfloat16: (4e-2, 1e-2),
}  # fmt: skip
#: Samples of an operation in an element type, and elements of a sample's tensors.
MAX_SAMPLES, MAX_ELEMENTS = 5, 20_000
#: Parts in which the operations are taken, of a second each.
PARTS = 256

TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))


@frozen
class Finding:
    """Difference of a sample: `refused`, or `value`, `type`, `error`."""

    kind: str
    name: str
    text: str


def entries(table: str) -> dict[str, str]:
    """Return the causes of a table, by operation."""
    found: dict[str, str] = {}
    for row in TABLES[table]:
        for name in row["operations"].split():
            assert found.setdefault(name, row["cause"]) == row["cause"], f"{name} has two rows in {table}"
    return found


def full_name(operation: Any) -> str:
    return f"{operation.name}.{operation.variant_test_name}" if operation.variant_test_name else operation.name


def operations(part: int) -> list[Any]:
    """Return the operations of a part."""
    omitted = entries("omitted")
    listed = [op for op in op_db if op.name not in omitted and not op.name.startswith("sparse")]
    return [op for number, op in enumerate(listed) if number % PARTS == part]


def types_of(operation: Any) -> list[torch.dtype]:
    """Return f32 and another element type of an operation."""
    own = operation.supported_dtypes("cpu")
    others = [dtype for dtype in OTHER_TYPES if dtype in own]
    other = others[zlib.crc32(full_name(operation).encode()) % len(others)] if others else None
    return [dtype for dtype in (torch.float32, other) if dtype in own]


def findings(operation: Any, gradients: bool = False) -> Iterator[Finding]:
    """Yield the differences in an operation's samples."""
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    for dtype in [torch.float32] if gradients else types_of(operation):
        if dtype not in operation.supported_dtypes("cpu"):
            continue
        for sample in _samples(operation, dtype):
            found = _compare(operation, sample, gradients)
            if found is not None:
                kind, text = found
                yield Finding(kind, full_name(operation), f"{str(dtype)[6:]}: {text}: {_text(sample)}")


def _samples(operation: Any, dtype: torch.dtype) -> Sequence[Any]:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    try:
        samples = list(operation.sample_inputs("cpu", dtype))
    except Exception:  # the generator itself needs another device or package
        return []
    return samples if len(samples) <= MAX_SAMPLES else random.Random(1).sample(samples, MAX_SAMPLES)


def _compare(operation: Any, sample: Any, gradients: bool) -> tuple[str, str] | None:
    leaves, tree = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[n].detach() for n in places]
    if sum(x.numel() for x in tensors) > MAX_ELEMENTS or not all(map(_is_plain, tensors)):
        return None

    def forward(*given: Any) -> tuple[Any, ...]:
        values = list(leaves)
        for place, tensor in zip(places, given, strict=True):
            values[place] = tensor
        first, rest, names = tree_unflatten(values, tree)
        return tuple(x for x in tree_leaves(operation.op(first, *rest, **names)) if x is not None)

    function = _gradient(forward) if gradients else forward
    try:
        wanted = function(*[x.clone() for x in tensors])
    except Exception:  # a sample that PyTorch refuses, or without gradient
        return None
    if not all(isinstance(w, torch.Tensor) and _is_plain(w) for w in wanted):
        return None
    return _judge(function, tensors, wanted)


def _is_plain(tensor: torch.Tensor) -> bool:
    return not (tensor.is_sparse or tensor.is_quantized or tensor.is_complex()) and tensor.layout is torch.strided


def _gradient(forward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    def gradient(*given: Any) -> tuple[Any, ...]:
        given = tuple(g.detach().requires_grad_(g.is_floating_point()) for g in given)
        results = [y for y in forward(*given) if isinstance(y, torch.Tensor) and y.requires_grad]
        sources = [g for g in given if g.requires_grad]
        weights = [torch.cos(torch.arange(y.numel(), dtype=torch.float64) + 1).to(y.dtype) for y in results]
        weights = [w.reshape(y.shape) for w, y in zip(weights, results, strict=True)]
        found = torch.autograd.grad(results, sources, weights, allow_unused=True)
        return tuple(torch.zeros_like(s) if g is None else g for s, g in zip(sources, found, strict=True))

    return gradient


def _judge(function: Callable[..., Any], tensors: Sequence[Any], wanted: Sequence[Any]) -> tuple[str, str] | None:
    try:
        plain = make_fx(function, tracing_mode="fake")(*tensors)
        whole = torch.func.functionalize(plain)
        graph = make_fx(whole, decomposition_table=training_decompositions(True), tracing_mode="fake")(*tensors).graph
    except Exception as error:  # PyTorch cannot trace it: its shapes depend on values
        return "refused", f"{type(error).__name__}: {str(error)[:80]}"
    try:
        captured = graph_of_nodes(graph)
    except CutsError as error:
        return "refused", str(error).splitlines()[0]
    given = {name: array_of(x) for name, x in zip(captured.inputs, tensors, strict=True) if name is not None}
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            found = evaluate_graph(captured.graph, captured.registry, given)
    except CutsError as error:
        return "error", str(error).splitlines()[0]
    for name, want in zip(captured.results, wanted, strict=True):
        if isinstance(name, str):
            array = found[name].astype(captured.graph.types[name].dtype.numpy)
            if text := _difference(array, want):
                return text
    return None


def _difference(found: Any, want: torch.Tensor) -> tuple[str, str] | None:
    wanted = array_of(want)
    if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
        return "type", f"wanted {wanted.dtype}{wanted.shape}, found {found.dtype}{found.shape}"
    agree = found == wanted
    if want.dtype in TOLERANCES:
        relative, absolute = TOLERANCES[want.dtype]
        a, b = found.astype(np.float64), wanted.astype(np.float64)
        with np.errstate(all="ignore"):
            agree = agree | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= absolute + relative * np.abs(b))
    if np.all(agree):
        return None
    first = tuple(np.argwhere(~agree)[0])
    return "value", f"{np.sum(~agree)} of {agree.size}, at {first} wanted {wanted[first]!r}, found {found[first]!r}"


def _text(sample: Any) -> str:
    def leaf(value: Any) -> str:
        return f"{str(value.dtype)[6:]}{[*value.shape]}" if isinstance(value, torch.Tensor) else repr(value)[:60]

    return str(tree_map(leaf, (sample.input, sample.args, sample.kwargs))).replace("'", "")[:200]
