"""Convolutions as rows of integers, and features of the latency model.

The paper ("Towards an Accurate Latency Model for Convolutional Neural Network Layers on GPUs", section III) describes a
layer as `<N, C, H, W, K, R, S, P, Q>` and lowers it to a product of matrices of `NPQ x CRS` and `CRS x K`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from ..ir import UsageError

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

#: The fields of a row, in order.
FIELDS = ("N", "C", "H", "W", "K", "R", "S", "stride_h", "stride_w", "pad_h", "pad_w", "dilation", "groups")
#: Largest size. Descriptions may omit sizes: strides and dilation are 1, images and filters are square, borders keep
#: the size of the image.
_MAX_SIZE = 1 << 20
_MAX_ELEMENTS = 1 << 40


def _table(rows: Any) -> Ints:
    table = np.asarray(rows, np.int64)
    return table.reshape(-1, len(FIELDS))


@frozen(eq=False)
class Convolutions:
    """Many convolutions, one a row of `FIELDS`.

    Every property is an array with a value for each.
    """

    table: Ints = field(converter=_table)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Convolutions:
        return Convolutions(self.table[index])

    def column(self, name: str) -> Ints:
        """Return one field of all."""
        return self.table[:, FIELDS.index(name)]

    @property
    def p(self) -> Ints:
        """Height of the result."""
        span = self.column("dilation") * (self.column("R") - 1) + 1
        return (self.column("H") + 2 * self.column("pad_h") - span) // self.column("stride_h") + 1

    @property
    def q(self) -> Ints:
        """Width of the result."""
        span = self.column("dilation") * (self.column("S") - 1) + 1
        return (self.column("W") + 2 * self.column("pad_w") - span) // self.column("stride_w") + 1

    @property
    def m(self) -> Ints:
        """Rows of the product: NPQ."""
        return self.column("N") * self.p * self.q

    @property
    def n(self) -> Ints:
        """Columns of the product of one group of channels: K."""
        return self.column("K") // self.column("groups")

    @property
    def k(self) -> Ints:
        """Terms of each sum: CRS."""
        return self.column("C") // self.column("groups") * self.column("R") * self.column("S")

    @property
    def m_in(self) -> Ints:
        """Elements read, equation (2): NCHW + KCRS."""
        image = self.column("N") * self.column("C") * self.column("H") * self.column("W")
        return image + self.column("K") * self.k

    @property
    def m_out(self) -> Ints:
        """Elements written, equation (2): NPQK."""
        return self.m * self.column("K")

    @property
    def flops(self) -> Floats:
        """Multiplications and additions."""
        return np.asarray(2.0 * self.m * self.column("K") * self.k, np.float64)


def convolution(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return one row from named sizes.

    They are `N`, `C`, `H`, `K`, `R` and those that differ from the defaults (`W`, `S`, `stride`, `pad`, `dilation`,
    `groups`). `W` is `H` and `S` is `R` where not given; `pad` keeps the image's size at stride 1 where not given.
    Raises `UsageError` for unknown names, sizes that are missing or not positive, channels that groups do not divide,
    and a filter larger than the image.
    """
    known = {"N", "C", "H", "W", "K", "R", "S", "stride", "pad", "dilation", "groups", *FIELDS}
    if unknown := sorted(set(sizes) - known):
        raise UsageError(f"unknown size '{unknown[0]}' of a convolution", hint=f"known are {', '.join(sorted(known))}")
    if missing := [name for name in ("C", "H", "K", "R") if name not in sizes]:
        raise UsageError(
            f"size '{missing[0]}' of a convolution is missing", hint="give it as in: conv2d N=16 C=64 H=56 K=64 R=3"
        )
    full = _complete(sizes)
    _check(full)
    return tuple(full[name] for name in FIELDS)


def _complete(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return sizes with the omitted ones filled in."""
    full = {"N": 1, "W": sizes["H"], "S": sizes["R"], "dilation": 1, "groups": 1, **sizes}
    stride = full.pop("stride", 1)
    pad = full.pop("pad", None)
    usual = {
        "stride_h": stride,
        "stride_w": stride,
        "pad_h": full["dilation"] * (full["R"] - 1) // 2 if pad is None else pad,
        "pad_w": full["dilation"] * (full["S"] - 1) // 2 if pad is None else pad,
    }
    return usual | full


def _check(full: Mapping[str, int]) -> None:
    for name, value in full.items():
        least = 0 if name.startswith("pad") else 1
        if not least <= value <= _MAX_SIZE:
            raise UsageError(f"size {name}={value} of a convolution: expected {least} to {_MAX_SIZE}")
    for name in ("C", "K"):
        if full[name] % full["groups"]:
            raise UsageError(
                f"{name}={full[name]} cannot be split into groups={full['groups']}", hint="groups divide C and K"
            )
    row = Convolutions([[full[name] for name in FIELDS]])
    if min(row.p[0], row.q[0]) < 1:
        size, window = f"{full['H']}x{full['W']}", f"{full['R']}x{full['S']}"
        raise UsageError(
            f"a filter of {window} does not fit an image of {size}", hint="enlarge H or pad, or use a smaller R"
        )
    if max(int(row.m_in[0]), int(row.m_out[0])) > _MAX_ELEMENTS:
        raise UsageError(
            f"a convolution of {max(int(row.m_in[0]), int(row.m_out[0])):,} elements is larger than any memory"
        )
