"""Matrix products with weights of few bits (`MatMulNBits`) as standard functions.

    b: uint8[N, blocks, bytes of a block], scales: [N * blocks], zeros: uint8[N * bytes of a row of blocks]

A byte holds neighbours along K, the first in its low bits. The importer unpacks the constant; the compiler packs it
again in as few bits as its numbers need.
"""

from __future__ import annotations

from collections.abc import Iterator

from .contrib_text import NodeUse, Text

#: Bits whose numbers do not cross bytes.
_BITS = (2, 4, 8)


def packed_product(use: NodeUse) -> Text:
    """Return the text of a product with packed weights.

    Raises `ValueError` for reordered groups and for bits that cross bytes, `KeyError` where a size is absent.
    """
    n, k, bits = int(use.attributes["N"]), int(use.attributes["K"]), int(use.get("bits", 4))
    block = int(use.attributes["block_size"])
    if bits not in _BITS or use.has(4) or block < 1:
        raise ValueError(f"{bits} bits or reordered groups")
    blocks = -(-k // block)
    middle = f"uint8[1] {{{1 << (bits - 1)}}}"
    lines = [
        *_unpack("b", bits, n, k),
        f"blocks = Constant <value_ints = [{n}, {blocks}]> ()",
        "s = Reshape (scales, blocks)",
    ]
    lines += (
        [*_unpack("zeros", bits, n, blocks)]
        if use.has(3)
        else [f"zeros_all = ConstantOfShape <value = {middle}> (blocks)"]
    )
    lines += [
        f"w = DequantizeLinear <axis = 1, block_size = {block}> (b_all, s, zeros_all)",
        "turned = Transpose <perm = [1, 0]> (w)",
        *(["m = MatMul (a, turned)", "y = Add (m, bias)"] if use.has(5) else ["y = MatMul (a, turned)"]),
    ]
    return ("a", "b", "scales", "zeros", "groups", "bias"), ("y",), lines


def _unpack(name: str, bits: int, rows: int, columns: int) -> Iterator[str]:
    """Yield the lines that make a matrix `{name}_all` of bytes of rows of packed numbers."""
    yield f"{name}_rows = Constant <value_ints = [{rows}, -1]> ()"
    yield f"{name}_last = Constant <value_ints = [-1]> ()"
    parts = []
    for place in range(8 // bits):
        yield f"{name}_shift{place} = Constant <value = uint8[1] {{{place * bits}}}> ()"
        yield f"{name}_mask{place} = Constant <value = uint8[1] {{{(1 << bits) - 1}}}> ()"
        yield f'{name}_low{place} = BitShift <direction = "RIGHT"> ({name}, {name}_shift{place})'
        yield f"{name}_bits{place} = BitwiseAnd ({name}_low{place}, {name}_mask{place})"
        yield f"{name}_part{place} = Unsqueeze ({name}_bits{place}, {name}_last)"
        parts.append(f"{name}_part{place}")
    yield f"{name}_joined = Concat <axis = -1> ({', '.join(parts)})"
    yield f"{name}_matrix = Reshape ({name}_joined, {name}_rows)"
    yield f"{name}_from = Constant <value_ints = [0]> ()"
    yield f"{name}_to = Constant <value_ints = [{columns}]> ()"
    yield f"{name}_axis = Constant <value_ints = [1]> ()"
    yield f"{name}_all = Slice ({name}_matrix, {name}_from, {name}_to, {name}_axis)"
