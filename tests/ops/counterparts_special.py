"""Counterparts of special functions: PyTorch and NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .counterparts_torch import Array, Attributes, Counterpart, of_tensors, torch


def _polygamma(a: Attributes, x: Any) -> Any:
    """PyTorch's zeta function has digits that its trigamma function has not; both need positive numbers."""
    n = a["n"]
    if n and (n > 5 or (x < 0).any()):
        return None
    return math.factorial(n) * (-1) ** (n + 1) * torch.special.zeta(n + 1.0, x) if n else torch.digamma(x)


def _bessel(a: Attributes, x: Any, scaled: bool = True) -> Any:
    if a["order"] > 1:
        return None
    names = ("i0e", "i1e") if scaled else ("i0", "i1")
    return getattr(torch.special, names[a["order"]])(x)


def _multiple(a: Attributes, x: Array, y: Array) -> Array:
    divisor = np.gcd(x, y)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(np.where(divisor == 0, 0, x // np.where(divisor == 0, 1, divisor)) * y))


#: Special functions, and common divisors.
SPECIAL: dict[str, Counterpart] = {
    "lgamma": of_tensors(lambda a, x: torch.lgamma(x)), "digamma": of_tensors(lambda a, x: torch.digamma(x)),
    "polygamma": of_tensors(_polygamma), "bessel_ie": of_tensors(_bessel),
    "bessel_i": of_tensors(lambda a, x: _bessel(a, x, scaled=False)),
    "erfinv": of_tensors(lambda a, x: torch.erfinv(x)),
    "erfinv_grad": of_tensors(lambda a, y, dy: dy * (math.sqrt(math.pi) / 2 * torch.exp(y * y))),
    "gcd": lambda a, x, y: np.gcd(x, y), "lcm": _multiple, "nextafter": lambda a, x, y: np.nextafter(x, y),
    "bits_of_f32": lambda a, x: x.astype(np.float32).view(np.int32),
    "bits_of_f64": lambda a, x: x.astype(np.float64).view(np.int64),
    "f32_of_bits": lambda a, x: x.view(np.float32), "f64_of_bits": lambda a, x: x.view(np.float64),
}  # fmt: skip
