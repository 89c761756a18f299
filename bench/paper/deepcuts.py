"""Tables of DeepCuts (PLDI 2021)."""

from __future__ import annotations

from cuts.bench.networks.tables import breakdowns, winners_table

from .registry import PaperTable

_EVALUATION = "python -m cuts.bench networks"

TABLES = (
    PaperTable(
        "11", "workloads that each system wins (Tables 11 and 12)", winners_table, file="evaluation.json",
        command=_EVALUATION,
    ),
    PaperTable(
        "figure-6", "microseconds by kind of kernel", breakdowns, file="evaluation.json", command=_EVALUATION,
    ),
)  # fmt: skip
