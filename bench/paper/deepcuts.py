"""Tables of DeepCuts (PLDI 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from cuts.bench.networks import tables
from cuts.bench.networks.models import BY_NAME
from cuts.bench.networks.systems import CURVE_SYSTEMS, PEERS
from cuts.bench.tools.markdown import markdown_table
from cuts.bench.tools.records import Row

from . import claim, partition_gap, space_sizes
from .registry import PaperTable


def is_of_the_evaluation(row: Row) -> bool:
    """Return whether tables of section 7 show a row."""
    timed, known = "ms" in row and row["precision"] == "fp32", row["model"].lower() in BY_NAME
    return timed and known and row["system"] not in CURVE_SYSTEMS


def hundred_steps(rows: Sequence[Row]) -> str:
    """Return seconds of 100 mini-batches of training (section 7.1).

    A star marks those of 100 measured steps, others are 100 times a step.
    """
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row in (row for row in rows if row["task"] == "training"):
        cell = f"{row['hundred_s']:.2f} *" if "hundred_s" in row else f"{row['ms'] / 10:.2f}"
        found.setdefault((row["model"], row["batch"]), {})[row["system"]] = cell
    names = [name for name in (*tables.WINNERS, *PEERS) if any(name in each for each in found.values())]
    lines = [[*key, *(each.get(name) for name in names)] for key, each in sorted(found.items())]
    return markdown_table(["model", "batch", *names], lines)


TABLES = (
    PaperTable(
        "claim", "the top 1 and 5 % by PUL, the bound and the cost model (section 4.3)", claim.table,
        claim.RECORDED_SPACES.names, claim.RECORDED_SPACES.make_rows,
    ),
    PaperTable(
        "whole", "the same for spaces that are timed whole", claim.table, claim.WHOLE_SPACES.names,
        claim.WHOLE_SPACES.make_rows,
    ),
    PaperTable(
        "gap", "greedy and optimal partitions of subgraphs under the cost model (Algorithm 1)", partition_gap.table,
        partition_gap.model_names, partition_gap.make_rows,
    ),
    PaperTable(
        "7.4", "sizes of schedule spaces by batch size", space_sizes.table, lambda: space_sizes.CONVOLUTIONS,
        space_sizes.make_rows,
    ),
    *(
        PaperTable(
            number, title, text, file="evaluation_h100.json" if number == "12" else "evaluation.json",
            command="python -m cuts.bench networks", shows=is_of_the_evaluation,
        )
        for number, title, text in (
            ("7.1", "seconds of 100 mini-batches of training", hundred_steps),
            ("11", "workloads that each system wins", tables.winners_table),
            ("12", "the same on a second GPU, an H100", tables.winners_table),
            ("figure-5", "speed-ups over graphed PyTorch by mode", tables.figure_5),
            ("figure-6", "microseconds by kind of kernel", tables.breakdowns),
            ("figure-7", "seconds of compilation and search", tables.code_generation),
            ("7.2", "launches of routines of libraries in tuned plans", tables.library_shares),
            ("evaluation", "models beside their peers, as README has them", tables.readme_table),
        )
    ),
)  # fmt: skip
