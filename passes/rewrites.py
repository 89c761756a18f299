"""Statements of a graph and their rewrites: equal programs that fuse better."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import frozen

from .compilation import Compilation
from .fusion import (
    Programs,
    build_programs,
    centre_means,
    compute_again,
    divide_behind,
    divide_moments,
    drop_unused,
    find_ungroupable,
    fold_units,
    follow_pieces,
    share_sums,
    sum_rows_first,
)
from .product_choices import compute_products_again

_LOG = logging.getLogger("cuts.passes")


@frozen
class Rewrite:
    """Rewrite of statements, a stage of the pipeline.

    `summary` describes the change, `file` contains it. `run` reads the statements alone; `decide` reads the whole
    compilation.
    """

    name: str
    run: Callable[[Programs], Programs] | None
    summary: str
    file: str
    decides: Callable[[Compilation], Programs] | None = None

    def made_of(self, work: Compilation) -> Programs:
        """Return the rewritten statements.

        They stay where a rewritten unit has no normal form.
        """
        found = self._rewritten(work)
        if found is not work.programs and (unit := find_ungroupable(work.programs, found)) is not None:
            _LOG.info("cuts: rewrite '%s' is left out: %s", self.name, unit.text)
            return work.programs
        return found

    def _rewritten(self, work: Compilation) -> Programs:
        """Return the statements as the rewrite leaves them."""
        if self.decides is not None:
            return self.decides(work)
        return work.programs if self.run is None else self.run(work.programs)


#: Sums are divided before means are centred, which matches the divided sums.
REWRITES = (
    Rewrite("drop-unused", drop_unused, "units whose results nothing reads are removed", "fusion/fold_units.py"),
    Rewrite("fold-units", fold_units, "units that no input reaches are constants", "fusion/fold_units.py"),
    Rewrite("share-sums", share_sums, "sums that several nodes compute are computed once", "fusion/sums/share_sums.py"),
    Rewrite("compute-again", compute_again, "light values between long sums are computed again after these",
            "fusion/sums/compute_again.py"),
    Rewrite("sum-rows-first", sum_rows_first, "totals over values of rows are summed row by row first",
            "fusion/sums/totals.py"),
    Rewrite("products-again", None, "products whose results others read element by element are computed again before "
            "each of these: where the model says so by more than it may err, or memory is limited",
            "fusion/sums/products_again.py", compute_products_again),
    Rewrite("divide-behind", divide_behind, "weights that add up to one are divided after the product that they weigh",
            "fusion/sums/divisors.py"),
    Rewrite("divide-moments", divide_moments, "variances of long rows are summed blockwise (Chan)",
            "fusion/sums/moments.py"),
    Rewrite("centre-means", centre_means, "means that centre values become sums of differences",
            "fusion/sums/centre.py"),
    Rewrite("follow-pieces", follow_pieces, "readers of a piecewise tensor are split into the same pieces",
            "fusion/pieces.py"),
)  # fmt: skip
#: The stages that write statements.
WRITING = ("programs", *(rewrite.name for rewrite in REWRITES))


def write_statements(work: Compilation) -> Programs:
    """Set the statements of each node's declaration."""
    return written(work, work.known("programs", lambda: build_programs(work.graph, work.registry, work.meanings)))


def rewrite_statements(work: Compilation, rewrite: Rewrite) -> Programs:
    """Set the statements that a rewrite returns."""
    return written(work, work.known(rewrite.name, lambda: rewrite.made_of(work)))


def write_programs(work: Compilation) -> Programs:
    """Set the statements of each node's declaration, with all rewrites applied."""
    write_statements(work)
    for rewrite in REWRITES:
        rewrite_statements(work, rewrite)
    return work.programs


def written(work: Compilation, programs: Programs) -> Programs:
    """Set programs, and their graph."""
    work.programs, work.graph = programs, programs.graph
    return programs
