"""Planted bugs in index maps.

They concern the algebra of indices, its inversion, views and movements.
"""

from __future__ import annotations

from .planting import Bug

BUGS = (
    Bug("index map", "the holes that a stride leaves count as written", "ir.affine.mixed_radix:digits_of",
        "guards.append(Guard(rest, 0, span))", "guards.append(Guard(rest, 0, factor + span))"),
    Bug("index map", "an axis that runs backwards begins one too late", "ir.affine.mixed_radix:digits_of",
        "(as_index(size - 1) - digit)", "(as_index(size) - digit)"),
    Bug("index map", "the greatest value of a quotient is one too small", "ir.affine.index:FloorDiv.bounds",
        "return low // self.den, high // self.den", "return low // self.den, max(low, high - 1) // self.den"),
    Bug("index map", "the rest of a mixed-radix sum keeps the digit taken off", "ir.affine.mixed_radix:digits_of",
        "rest = modulo(rest, factor)", "rest = rest - modulo(rest, 1)"),
    Bug("view", "the steps of a view are those of its transpose", "passes.fusion.views:_moved_storage",
        "tuple(address.coefficient(d) for d in dims)", "tuple(address.coefficient(d) for d in dims[::-1])"),
    Bug("index map", "quotients of a remainder are taken as quotients of all", "ir.affine.index:floordiv",
        "return quotient + modulo(floordiv(primary.num, divisor), primary.den // divisor)",
        "return quotient + floordiv(primary.num, divisor)"),
    Bug("index map", "a small remainder is dropped although it may carry", "ir.affine.index:_drop_small",
        "if low >= 0 and high < g:", "if low >= 0 and high <= g:"),
    Bug("index map", "recombined quotient and remainder forget the outer modulus", "ir.affine.index:_recombine",
        "joined = modulo(low.num, low.den * high.den)", "joined = low.num"),
    Bug("index map", "clamping is dropped one element too early", "ir.affine.index:clamp",
        "if low <= first and last <= high:", "if low <= first and last <= high + 1:"),
    Bug("index map", "coordinates are split by the extent of the wrong axis", "ir.affine.addresses:delinearise",
        "modulo(quotient, extent))", "modulo(quotient, shape[0]))"),
    Bug("view", "a view of a slice begins where its source does", "passes.fusion.views:_moved_storage",
        "storage.offset + address.const", "storage.offset"),
    Bug("view", "a tensor that has a place is placed again", "passes.fusion.views:_Finder._place",
        "tensor in self.outputs or tensor in self.storages or any(u.name in self.free for u in writers)",
        "tensor in self.outputs"),
    Bug("view", "operands that are not adjacent count as joined", "passes.fusion.views:_Finder._adjacent",
        "if offsets or not offset.is_const", "if not offset.is_const"),
    Bug("movement", "two permutations compose in the wrong order",
        "passes.graph.simplification.compose_movement:ComposeMovement._means",
        "return move == wanted", "return move is not None and move.result == wanted.result"),
    Bug("movement", "a movement that keeps the shape counts as a copy",
        "passes.graph.simplification.compose_movement:_is_copy",
        "move.body.indices == _coordinates(move.result) and source == move.result", "source == move.result"),
    Bug("movement", "a conversion to a narrower type and back is dropped",
        "passes.graph.simplification.compose_movement:_holds",
        "if wide is narrow:", "if wide is not None:"),
    Bug("movement", "nodes with different attributes merge",
        "passes.graph.simplification.common_subexpressions:EliminateCommonSubexpressions.run",
        "attributes_key(attributes)", "tuple(sorted(attributes))"),
    Bug("movement", "constants of equal type merge",
        "passes.graph.simplification.common_subexpressions:_equal_constants",
        "        if counts[sketches[name]] == 1:  # most are unique, and hashing all bits of large weights takes long\n"
        "            continue\n        key = (sketches[name][0], _digest(array))",
        "        key = (sketches[name][0], array.size)"),
)  # fmt: skip
