"""Statements of a graph, and their rewrites in order: each returns programs that compute the same, and fuse better."""

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
    """One rewrite: a stage of its own, whose `summary` says what becomes of statements, and `file` where to read on. It
    is told of the statements alone, or, where they are not all that decides, of the compilation.
    """

    name: str
    run: Callable[[Programs], Programs] | None
    summary: str
    file: str
    decides: Callable[[Compilation], Programs] | None = None

    def made_of(self, work: Compilation) -> Programs:
        """Return what becomes of a compilation's statements; they stay where a rewritten unit has no normal form."""
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


#: Sums are divided before means are centred, which looks for the sums as they are then.
REWRITES = (
    Rewrite("drop-unused", drop_unused, "units whose results nothing reads are removed", "fusion/fold_units.py"),
    Rewrite("fold-units", fold_units, "units that depend on no input become constants", "fusion/fold_units.py"),
    Rewrite("share-sums", share_sums, "CSE of sums that several nodes compute", "fusion/sums/share_sums.py"),
    Rewrite("compute-again", compute_again, "cheap values between long sums are rematerialised after them",
            "fusion/sums/compute_again.py"),
    Rewrite("sum-rows-first", sum_rows_first, "totals over values of rows are summed row by row first",
            "fusion/sums/totals.py"),
    Rewrite("products-again", None, "contractions read elementwise by other contractions are recomputed for each of "
            "these, where the gain by the cost model exceeds its error, or memory is limited",
            "fusion/sums/products_again.py", compute_products_again),
    Rewrite("divide-behind", divide_behind, "normalised weights are divided after the contraction that they weigh",
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
    """Leave each node's declaration as statements."""
    return written(work, work.known("programs", lambda: build_programs(work.graph, work.registry, work.meanings)))


def rewrite_statements(work: Compilation, rewrite: Rewrite) -> Programs:
    """Leave what a rewrite makes of the statements."""
    return written(work, work.known(rewrite.name, lambda: rewrite.made_of(work)))


def write_programs(work: Compilation) -> Programs:
    """Leave each node's declaration as statements, with all rewrites of these."""
    write_statements(work)
    for rewrite in REWRITES:
        rewrite_statements(work, rewrite)
    return work.programs


def written(work: Compilation, programs: Programs) -> Programs:
    """Leave programs, and their graph."""
    work.programs, work.graph = programs, programs.graph
    return programs
