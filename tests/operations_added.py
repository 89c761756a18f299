"""Uses of operations that recorded digests of kernels do not have.

`bench/tools/digest_cases.py` has a graph of its own for them.
"""

from __future__ import annotations

from cuts.ir.types import DType, TensorType
from cuts.tests.operation_use import Use, uses


def _integers(kind: DType, *shape: int) -> TensorType:
    return TensorType(kind, shape)


DIFFERENTIABLE: list[Use] = []
#: Operations without gradients.
FLAT: list[Use] = [
    uses("histogram", (40,), (), (), bins=5),
    uses("histogram", _integers(DType.I32, 40), _integers(DType.I32), _integers(DType.I32), classes=9, bins=4),
]  # fmt: skip
