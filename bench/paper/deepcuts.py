"""Tables of DeepCuts (PLDI 2021)."""

from __future__ import annotations

from cuts.bench.networks.tables import breakdowns, code_generation, figure_5, readme_table, winners_table

from . import claim, partition_gap
from .registry import PaperTable

_EVALUATION = "python -m cuts.bench networks"

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
        "11", "workloads that each system wins (Tables 11 and 12)", winners_table, file="evaluation.json",
        command=_EVALUATION,
    ),
    PaperTable(
        "figure-5", "speed-ups over graphed PyTorch by mode", figure_5, file="evaluation.json", command=_EVALUATION,
    ),
    PaperTable(
        "evaluation", "models beside their peers, as README has them", readme_table, file="evaluation.json",
        command=_EVALUATION,
    ),
    PaperTable(
        "figure-7", "seconds of compilation and search", code_generation, file="evaluation.json", command=_EVALUATION,
    ),
    PaperTable(
        "figure-6", "microseconds by kind of kernel", breakdowns, file="evaluation.json", command=_EVALUATION,
    ),
)  # fmt: skip
