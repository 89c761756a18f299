"""Element types as DLPack numbers them: a code and bits."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir import DType

_CODES = {"signed": 0, "unsigned": 1, "float": 2, "condition": 6}
#: Codes of the floats that DLPack names.
_FLOAT_CODES = {DType.BF16: 4, DType.F8E4M3: 10, DType.F8E5M2: 12}


def dlpack_code(dtype: DType) -> int:
    """Return DLPack's code of an element type."""
    return _FLOAT_CODES.get(dtype, _CODES[dtype.element.kind])


#: Element types by DLPack's code and bits.
DTYPES: Mapping[tuple[int, int], DType] = {(dlpack_code(dtype), 8 * dtype.size): dtype for dtype in DType}
