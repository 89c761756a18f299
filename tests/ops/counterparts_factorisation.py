"""Counterparts of factorisations: PyTorch's."""

from __future__ import annotations

from typing import Any

import numpy as np

from .counterparts_torch import Array, Attributes, Counterpart, of_tensors, torch


def _is_tame(x: Any) -> bool:
    """Return whether elements are numbers whose products are, and no column of small ones cancels."""
    size = x.abs()
    return bool(x.numel()) and bool(torch.isfinite(x).all()) and float(size.max()) < 1e6


def _lu(a: Attributes, x: Any) -> Any:
    """Of equal pivots the first counts here; PyTorch's library has no rule. Singular matrices have no quotients."""
    if not _is_tame(x):
        return None
    factors, pivots, info = torch.linalg.lu_factor_ex(x)
    diagonal = factors.diagonal(dim1=-2, dim2=-1).abs()
    if info.any() or float(diagonal.min()) < 1e-3 * float(x.abs().max()) or len(x.abs().unique()) < x.numel():
        return None
    return factors, pivots


def _triangular(a: Attributes, x: Any, b: Any) -> Any:
    if not _is_tame(x) or not _is_tame(b) or float(x.diagonal(dim1=-2, dim2=-1).abs().min()) < 0.1:
        return None
    return torch.linalg.solve_triangular(x, b, upper=a["upper"], unitriangular=a["unit"])


def _cholesky(a: Attributes, x: Any) -> Any:
    if not _is_tame(x):
        return None
    factor, info = torch.linalg.cholesky_ex(x)
    return None if info.any() else factor


def _exchanges(a: Attributes, pivots: Array) -> Array | None:
    count = pivots.shape[-1]
    if ((pivots < np.arange(1, count + 1)) | (pivots > count)).any():
        return None
    order = np.broadcast_to(np.arange(count), pivots.shape).copy()
    for place in np.ndindex(pivots.shape[:-1]):
        for step, other in enumerate(pivots[place]):
            order[place][[step, other - 1]] = order[place][[other - 1, step]]
    return order


def dominate(arrays: dict[str, Array], attributes: Attributes) -> None:
    """Move matrices towards ones with a large diagonal, which have factors."""
    for name in ("x", "a"):
        if name in arrays and arrays[name].ndim >= 2 and arrays[name].shape[-1] == arrays[name].shape[-2]:
            n = arrays[name].shape[-1]
            arrays[name] = (arrays[name] + 8 * n * np.eye(n)).astype(arrays[name].dtype)


#: Factorisations.
FACTORISATIONS: dict[str, Counterpart] = {
    "lu": of_tensors(_lu), "solve_triangular": of_tensors(_triangular), "cholesky": of_tensors(_cholesky),
    "exchanges": _exchanges,
}  # fmt: skip
