"""Statements of a graph and their rewrites: equal programs that fuse better."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import evolve, frozen

from .context import CompileContext
from .contraction_recompute import choose_recomputed_contractions
from .fusion import (
    Programs,
    block_variances,
    build_programs,
    copy_rows,
    defer_normalisation,
    drop_unused,
    eliminate_common_reductions,
    find_ungroupable,
    fold_scales,
    fold_units,
    hoist_parameters,
    multiply_bytes,
    narrow_extremes,
    pad_images,
    rematerialise,
    shift_means,
    split_piecewise_readers,
    sum_rows_first,
)
from .packing import pack_bits
from .results import Algorithms, Statements

_LOG = logging.getLogger("cuts.passes")


@frozen
class Rewrite:
    """Rewrite of statements, a stage of the pipeline.

    `summary` describes the change, `file` contains it.
    """

    name: str
    run: Callable[[Statements, CompileContext], Statements]
    summary: str
    file: str

    def apply(self, previous: Statements, context: CompileContext) -> Statements:
        """Return the rewritten statements.

        They stay where a rewritten unit has no normal form.
        """
        found = self.run(previous, context)
        if found is not previous and (unit := find_ungroupable(previous.programs, found.programs)) is not None:
            _LOG.info("cuts: rewrite '%s' is left out: %s", self.name, unit.text)
            return previous
        return found


def program_rewrite(name: str, rewrite: Callable[[Programs], Programs], summary: str, file: str) -> Rewrite:
    """Return a rewrite that reads the statements alone."""
    return Rewrite(name, lambda previous, _: with_programs(previous, rewrite(previous.programs)), summary, file)


def recompute_rows(previous: Statements, context: CompileContext) -> Statements:
    """Return statements with row operations computed again for each product.

    Products share a launch, in which all of them begin at once; copies that stay kernels share one, too.
    """
    gpu = context.target.lockstep and context.options.mode != "no-fusion" and not context.target.invariant
    return with_programs(previous, copy_rows(previous.programs)) if gpu else previous


def _block_variances(previous: Statements, context: CompileContext) -> Statements:
    return with_programs(previous, block_variances(previous.programs, context.target.cluster_blocks))


#: Sums are divided before means are centred, which matches the divided sums.
REWRITES = (
    program_rewrite("drop-unused", drop_unused, "units whose results nothing reads are removed",
        "fusion/fold_units.py"),
    program_rewrite("hoist-parameters", hoist_parameters, "values of parameters that large statements evaluate for "
        "each result are computed once, by a kernel of their own", "fusion/sums/parameter_hoisting.py"),
    program_rewrite("fold-units", fold_units, "units that no input reaches are constants", "fusion/fold_units.py"),
    program_rewrite("pad-images", pad_images, "images of bytes in few channels are stored with their border, in whole "
        "words", "fusion/quantised/padded_images.py"),
    program_rewrite("multiply-bytes", multiply_bytes, "products of dequantised bytes multiply the bytes and scale "
        "their sums", "fusion/quantised/narrow_products.py"),
    program_rewrite("round-first", narrow_extremes, "values whose maximum is rounded to integers are rounded first",
        "fusion/quantised/narrow_extremes.py"),
    program_rewrite("fold-scales", fold_scales, "constant scales and shifts contain the divisors that follow them",
        "fusion/quantised/fold_scales.py"),
    program_rewrite("pack-bits", pack_bits, "constants of bytes that units widen take as few bits as their numbers "
        "need; each reader of a widened value computes its own", "packing/packed_units.py"),
    program_rewrite("share-sums", eliminate_common_reductions, "sums that several nodes compute are computed once",
        "fusion/sums/reduction_cse.py"),
    program_rewrite("compute-again", rematerialise, "light values between long sums, and values far larger than "
        "their operands, are computed by each reader",
        "fusion/sums/rematerialisation.py"),
    program_rewrite("sum-rows-first", sum_rows_first, "totals over values of rows are summed row by row first",
        "fusion/sums/hierarchical_reduction.py"),
    Rewrite("products-again", choose_recomputed_contractions, "products whose results others read element by "
        "element are computed again before each of these: where the model says so by more than it may err, or memory "
        "is limited",
        "fusion/sums/contraction_recompute.py"),
    Rewrite("rows-again", recompute_rows, "row operations that several products of one row read are computed again "
        "by each of these",
        "fusion/sums/row_recompute.py"),
    program_rewrite("divide-behind", defer_normalisation,
        "weights that add up to one are divided after the product that they weigh",
        "fusion/sums/deferred_normalisation.py"),
    Rewrite("divide-moments", _block_variances, "variances of long rows, which no cluster of blocks holds, are summed "
        "blockwise (Chan)", "fusion/sums/blocked_variance.py"),
    program_rewrite("centre-means", shift_means, "means that centre values become sums of differences",
        "fusion/sums/shifted_mean.py"),
    program_rewrite("follow-pieces", split_piecewise_readers,
        "readers of a piecewise tensor are split into the same pieces", "fusion/piecewise.py"),
)  # fmt: skip
#: The stages that write statements.
STATEMENT_STAGES = ("programs", *(rewrite.name for rewrite in REWRITES))


def write_statements(plan: Algorithms, context: CompileContext) -> Statements:
    """Return the statements of each node's declaration."""

    def write() -> Statements:
        chosen, target = context.options.deterministic, context.target
        return Statements(plan, build_programs(plan.graph, context.registry, context.meanings, chosen, target))

    return context.once("programs", plan, write)


def rewrite_statements(previous: Statements, context: CompileContext, rewrite: Rewrite) -> Statements:
    """Return the statements that a rewrite makes of others."""
    return context.once(rewrite.name, previous, lambda: rewrite.apply(previous, context))


def rewrite_all(plan: Algorithms, context: CompileContext) -> Statements:
    """Return the statements of each node's declaration, with all rewrites applied."""
    statements = write_statements(plan, context)
    for rewrite in REWRITES:
        statements = rewrite_statements(statements, context, rewrite)
    return statements


def with_programs(previous: Statements, programs: Programs) -> Statements:
    """Return statements with other programs; the same object where these stay."""
    return previous if programs is previous.programs else evolve(previous, programs=programs)
