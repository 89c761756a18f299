"""Contractions of a chain in registers: products, and copies of factors."""

from __future__ import annotations

from attrs import frozen

from ....ir import Index, Item, ProductCommit
from ..k_loop import Multiplication, SharedPipeline


@frozen
class ChainProduct:
    """A contraction of the chain.

    It has the copies of its second factor, and those of its first one, if that is staged.
    """

    product: Multiplication
    copies: SharedPipeline
    rows: SharedPipeline

    @property
    def steps(self) -> list[Item]:
        """The products of a part."""
        steps = range(self.product.steps)
        return [self.product.all_steps()] if self.rows.tiles else [self.product.step_of_rows(n) for n in steps]

    @property
    def rows_loads(self) -> list[Item]:
        """The loads of the first factor: to registers, or to shared memory."""
        steps = range(self.product.steps)
        return [*self.rows.fetch(Index()).whole] if self.rows.tiles else [self.product.load_rows(n) for n in steps]

    @property
    def unfinished(self) -> list[Item]:
        """The unfinished products of a part, and the end of their group."""
        steps = range(self.product.steps)
        begins = bool(self.rows.tiles)
        return [*(self.product.step_in_place(number, begins) for number in steps), ProductCommit()]
