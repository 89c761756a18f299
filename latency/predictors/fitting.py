"""Least absolute deviations with coefficients that are not negative.

It is equation (4) as a linear program. Minimise `sum of w |y - A x|` over `x >= 0`: with `e` above each deviation, `A x
+ e >= y` and `A x - e <= y`. HiGHS solves it exactly. Weights `1 / y` make it the sum of relative errors.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from ...ir import BackendError, install_command
from ..convolution import Floats


def library(name: str) -> Any:
    """Return a module of an optional package.

    Raises `BackendError` with its installation where it is missing.
    """
    try:
        return import_module(name)
    except ImportError as error:
        raise BackendError(
            f"latency models need {name.partition('.')[0]}: {error}", hint=install_command("latency")
        ) from error


def one_thread() -> Any:
    """Return a context in which OpenMP has one thread.

    Trees of a few thousand samples are slower with more, and far slower on a busy machine.
    """
    return library("threadpoolctl").threadpool_limits(1)


def least_deviations(a: Floats, y: Floats, weights: Floats | None = None) -> Floats:
    """Return non-negative coefficients with the least weighted absolute deviations.

    They are the `x >= 0` with the least sum of |y - A x|. Raises `BackendError` where none is found.
    """
    weights = np.ones_like(y) if weights is None else weights
    scale = np.maximum(np.abs(a).max(axis=0), 1e-300)  # columns differ by twelve orders of magnitude
    rows, columns = a.shape
    sparse = library("scipy.sparse")
    eye = sparse.identity(rows, format="csr")
    left = sparse.csr_array(a / scale)
    above = sparse.vstack([sparse.hstack([-left, -eye]), sparse.hstack([left, -eye])], format="csr")
    cost = np.concatenate([np.zeros(columns), weights])
    found = library("scipy.optimize").linprog(
        cost, A_ub=above, b_ub=np.concatenate([-y, y]), bounds=(0, None), method="highs"
    )
    if found.status != 0:
        raise BackendError(f"no coefficients found: {found.message}")
    return np.asarray(found.x[:columns] / scale)


def least_squares(a: Floats, y: Floats, weights: Floats) -> Floats:
    """Return non-negative coefficients with the least weighted squares.

    They are the `x >= 0` with the least squares of w (y - A x). It is quick, for comparisons of many fits.
    """
    scale = np.maximum(np.abs(a).max(axis=0), 1e-300)
    found, _ = library("scipy.optimize").nnls(a / scale * weights[:, None], y * weights, maxiter=200)
    return np.asarray(found / scale)
