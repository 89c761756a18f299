"""Matrix-instruction work of a warp in one K block, as arrays."""

from __future__ import annotations

from attrs import frozen

from ...ir import (
    FUNCTIONS,
    LANES,
    MATH_MODES,
    MMA_INSTRUCTIONS,
    Expr,
    MatrixFragment,
    MmaInstruction,
    Segment,
)
from ..geometry import Count, Geometry, mma_operands, product, runs


@frozen
class MmaSide:
    """A warp's part of an operand.

    It consists of the expression, the instructions along its side, and a lane's part of one fragment.
    """

    expr: Expr
    atoms: Count
    fragment: MatrixFragment

    @property
    def elements(self) -> int:
        """Elements that a lane holds."""
        return self.fragment.size


@frozen
class MmaWork:
    """A warp's part of a K block.

    It counts steps along the depth, fragments of A and of B, products of parts, parts of an operand, and the
    instructions that split one element.
    """

    mma: MmaInstruction
    steps: Count
    sides: tuple[MmaSide, MmaSide]
    products: int
    parts: int
    splitting: int

    @property
    def multiplications(self) -> Count:
        """Matrix instructions of a warp in a K block.

        Those of a warpgroup count for each of its warps, and for each `n` columns.
        """
        return self.sides[0].atoms * self.sides[1].atoms * self.steps * self.products


def mma_work(segment: Segment, geometry: Geometry, position: int = 0) -> MmaWork:
    """Return the work of a segment's reduction at a position.

    Its template names a matrix instruction.
    """
    structure, reduction = geometry.structure, segment.reductions[position]
    atom, mode = MMA_INSTRUCTIONS[structure.mma], MATH_MODES.get(reduction.math)
    found = mma_operands(reduction, structure.dims[structure.rows], structure.dims[structure.columns])
    assert found is not None, "structures are made for reductions that atoms compute"
    others = product(n for d, n in enumerate(geometry.thread) if d not in (structure.rows, structure.columns))
    sides = tuple(
        MmaSide(expr, geometry.thread[d] // run * (others if d == structure.rows else 1), fragment)
        for expr, d, run, fragment in zip(
            found, (structure.rows, structure.columns), runs(atom), (atom.a, atom.b), strict=True
        )
    )
    return MmaWork(
        atom,
        geometry.block_k[structure.reduces[position][0]] // (atom.k * geometry.reduction_threads),
        (sides[0], sides[1]),
        len(mode.products) if mode is not None else 1,
        len(mode.parts) if mode is not None else 1,
        sum(FUNCTIONS[fn].issue for fn in mode.parts) if mode is not None else 0,
    )


def warps_of(geometry: Geometry) -> Count:
    """Return the warps of a block."""
    return geometry.threads // LANES
