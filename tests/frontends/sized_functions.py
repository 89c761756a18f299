"""Functions of tensors whose sizes vary, against eager at some sizes.

`sized_functions.txt` has them, below the ranges of the sizes. A line has the shapes of the operands `a`, `b`, `c`, and
an expression. A shape begins with the kind of elements: `f` floats, `h` halves, `b` truth values, `iK` integers below
K, `sK` integers from -K; its sizes are expressions of `n` and `m`. Lines below `[refused: CAUSE]` have none.

Padding holds NaN: no element that is there may be computed from it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from cuts.compile.dynamic.dynamic_plan import elements_there
from cuts.frontends.torch.decompositions import training_decompositions
from cuts.frontends.torch.import_context import array_of
from cuts.frontends.torch.loading import graph_of_nodes
from cuts.ir import CutsError, Dim, size_samples
from cuts.numerics import run_reference
from cuts.ops.symbolic import bounded_graph
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

#: Sizes that are tried, those in range.
SIZES = [(1, 1), (7, 5), (5, 3), (3, 5), (7, 2), (2, 4), (6, 1), (9, 2)]


@frozen
class SizedFunction:
    """Expression of operands, the ranges of sizes, a refusal's cause."""

    dims: tuple[Dim, ...]
    shapes: tuple[tuple[str, ...], ...]
    expression: str
    refused: str = ""

    def __call__(self, *operands: torch.Tensor) -> Any:
        names = {"torch": torch, "F": torch.nn.functional, "math": math, **dict(zip("abcd", operands, strict=False))}
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # a variance of one element
            return eval(self.expression, names)

    def operands(self, sizes: Mapping[str, int], seed: int = 0) -> list[torch.Tensor]:
        """Return random operands."""
        random = torch.Generator().manual_seed(seed)
        return [_operand(shape, sizes, random) for shape in self.shapes]


def _operand(shape: Sequence[str], sizes: Mapping[str, int], random: torch.Generator) -> torch.Tensor:
    kind, *rest = shape
    extents = [int(eval(extent, dict(sizes))) for extent in rest]
    if kind in "fh":
        return torch.randn(extents, generator=random, dtype=torch.float32 if kind == "f" else torch.float16)
    if kind == "b":
        return torch.randint(0, 2, extents, generator=random).bool()
    limit = int(eval(kind[1:] or "9", dict(sizes)))
    return torch.randint(-limit if kind[0] == "s" else 0, limit, extents, generator=random)


def sized_functions() -> Iterator[SizedFunction]:
    """Yield the functions of the file."""
    dims: tuple[Dim, ...] = ()
    cause = ""
    for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines():
        if line.startswith("[refused: "):
            cause = line[len("[refused: ") : -1]
        elif line.startswith("["):
            ranges = [entry.split("=") for entry in line[1:-1].split()]
            dims, cause = tuple(Dim(name, *map(int, ends.split(".."))) for name, ends in ranges), ""
        else:
            shapes, expression = line.split(" | ")
            yield SizedFunction(dims, tuple(tuple(s.split()) for s in shapes.split("; ")), expression, cause)


def difference(function: SizedFunction) -> str:
    """Return the first difference from eager, or from the file."""
    samples = size_samples(function.dims, {dim.name: dim.low for dim in function.dims})
    try:
        found = [_captured_graph(function, sizes) for sizes in samples.samples]
        first = found[0]
        bounded = bounded_graph([each.graph for each in found], samples, first.registry.instances)
    except CutsError as error:
        return "" if function.refused else f"refused: {error}"
    if function.refused:
        return "it is not refused"
    names = [dim.name for dim in function.dims]
    for pair in SIZES:
        sizes = dict(zip(names, pair, strict=False))
        if all(dim.low <= sizes[dim.name] <= dim.high for dim in function.dims):
            given = function.operands(sizes, 1)
            wanted = tree_leaves(function(*given))
            arrays = {n: _with_padding(array_of(x), bounded, n) for n, x in zip(first.inputs, given, strict=True) if n}
            arrays |= {s.tensor: np.array(sizes[dim] - s.low, np.int32) for dim, s in bounded.sizes.items()}
            with np.errstate(all="ignore"):
                results = run_reference(bounded.graph, first.registry, arrays)
            for name, want in zip(first.results, wanted, strict=True):
                if isinstance(name, str) and (text := _unequal(results[name], bounded.layouts[name], sizes, want)):
                    return f"{sizes}: {text}"
    return ""


def _captured_graph(function: SizedFunction, sizes: Mapping[str, int]) -> Any:
    operands = function.operands(sizes)
    plain = make_fx(lambda *given: tuple(tree_leaves(function(*given))), tracing_mode="fake")(*operands)
    table = training_decompositions()
    return graph_of_nodes(make_fx(torch.func.functionalize(plain), table, "fake")(*operands).graph)


def _with_padding(array: Any, bounded: Any, name: str) -> Any:
    shape = bounded.graph.types[name].shape
    whole = np.full(shape, np.nan, array.dtype) if array.dtype.kind == "f" else np.zeros(shape, array.dtype)
    whole[tuple(slice(0, n) for n in array.shape)] = array
    return whole


def _unequal(whole: Any, layouts: Any, sizes: Mapping[str, int], want: torch.Tensor) -> str:
    found, wanted = elements_there(whole, layouts, sizes), array_of(want)
    if found.shape != wanted.shape:
        return f"wanted shape {wanted.shape}, found {found.shape}"
    relative = 1e-2 if wanted.dtype.itemsize == 2 else 1e-4
    agree = found == wanted
    if wanted.dtype.kind == "f":
        agree = np.isclose(found.astype(float), wanted.astype(float), rtol=relative, atol=1e-5, equal_nan=True)
    return "" if np.all(agree) else f"wanted {wanted[~agree][:4]}, found {found[~agree][:4]}"
