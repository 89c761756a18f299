"""Statements of a graph and their rewrites: equal programs that fuse better."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import frozen

from .compilation import Compilation
from .contraction_recompute import choose_recomputed_contractions
from .fusion import (
    Programs,
    block_variances,
    build_programs,
    defer_normalisation,
    drop_unused,
    eliminate_common_reductions,
    find_ungroupable,
    fold_units,
    rematerialise,
    shift_means,
    split_piecewise_readers,
    sum_rows_first,
)

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
    decide: Callable[[Compilation], Programs] | None = None

    def apply(self, work: Compilation) -> Programs:
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
        if self.decide is not None:
            return self.decide(work)
        return work.programs if self.run is None else self.run(work.programs)


#: Sums are divided before means are centred, which matches the divided sums.
REWRITES = (
    Rewrite("drop-unused", drop_unused, "units whose results nothing reads are removed", "fusion/fold_units.py"),
    Rewrite("fold-units", fold_units, "units that no input reaches are constants", "fusion/fold_units.py"),
    Rewrite("share-sums", eliminate_common_reductions, "sums that several nodes compute are computed once",
        "fusion/sums/reduction_cse.py"),
    Rewrite("compute-again", rematerialise, "light values between long sums are computed again after these",
            "fusion/sums/rematerialisation.py"),
    Rewrite("sum-rows-first", sum_rows_first, "totals over values of rows are summed row by row first",
            "fusion/sums/hierarchical_reduction.py"),
    Rewrite("products-again", None, "products whose results others read element by element are computed again before "
            "each of these: where the model says so by more than it may err, or memory is limited",
            "fusion/sums/contraction_recompute.py", choose_recomputed_contractions),
    Rewrite("divide-behind", defer_normalisation,
        "weights that add up to one are divided after the product that they weigh",
            "fusion/sums/deferred_normalisation.py"),
    Rewrite("divide-moments", block_variances, "variances of long rows are summed blockwise (Chan)",
            "fusion/sums/blocked_variance.py"),
    Rewrite("centre-means", shift_means, "means that centre values become sums of differences",
            "fusion/sums/shifted_mean.py"),
    Rewrite("follow-pieces", split_piecewise_readers, "readers of a piecewise tensor are split into the same pieces",
            "fusion/piecewise.py"),
)  # fmt: skip
#: The stages that write statements.
STATEMENT_STAGES = ("programs", *(rewrite.name for rewrite in REWRITES))


def write_statements(work: Compilation) -> Programs:
    """Set the statements of each node's declaration."""
    return set_programs(
        work, work.stage_result("programs", lambda: build_programs(work.graph, work.registry, work.meanings))
    )


def rewrite_statements(work: Compilation, rewrite: Rewrite) -> Programs:
    """Set the statements that a rewrite returns."""
    return set_programs(work, work.stage_result(rewrite.name, lambda: rewrite.apply(work)))


def write_programs(work: Compilation) -> Programs:
    """Set the statements of each node's declaration, with all rewrites applied."""
    write_statements(work)
    for rewrite in REWRITES:
        rewrite_statements(work, rewrite)
    return work.programs


def set_programs(work: Compilation, programs: Programs) -> Programs:
    """Set programs, and their graph."""
    work.programs, work.graph = programs, programs.graph
    return programs
