"""Tables of DeepCuts (PLDI 2021)."""

from __future__ import annotations

from cuts.bench.networks.models import BY_NAME
from cuts.bench.networks.systems import CURVE_SYSTEMS
from cuts.bench.networks.tables import (
    breakdowns,
    code_generation,
    figure_5,
    library_shares,
    readme_table,
    winners_table,
)
from cuts.bench.tools.records import Row

from . import claim, partition_gap, space_sizes
from .registry import PaperTable


def is_of_the_evaluation(row: Row) -> bool:
    """Return whether tables of section 7 show a row."""
    timed, known = "ms" in row and row["precision"] == "fp32", row["model"].lower() in BY_NAME
    return timed and known and row["system"] not in CURVE_SYSTEMS


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
            ("11", "workloads that each system wins", winners_table),
            ("12", "the same on a second GPU, an H100", winners_table),
            ("figure-5", "speed-ups over graphed PyTorch by mode", figure_5),
            ("figure-6", "microseconds by kind of kernel", breakdowns),
            ("figure-7", "seconds of compilation and search", code_generation),
            ("7.2", "launches of routines of libraries in tuned plans", library_shares),
            ("evaluation", "models beside their peers, as README has them", readme_table),
        )
    ),
)  # fmt: skip
