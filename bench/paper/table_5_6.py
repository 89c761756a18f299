"""Table 5.6 of the BigCuts thesis, recomputed cell by cell.

The efficiency of compute is not printed, so a block of the table (a model on a cluster, both policies) fixes times only
up to a scale. It is fitted: the median of computed over printed among cells that communication decides. For GPT-3 the
printed best is the ideal, which places compute at 1; for Turing-NLG the text gives the distance of the best from the
ideal, and no cell is near it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from cuts.cluster.planning.thesis import TABLE_5_6, Reading, thesis_terms
from cuts.cluster.plans import Machine, Terms, Transformer, Way, columns, load_machine, load_transformer

#: Block -> (model, its mini-batch in the thesis, cluster, best over ideal by the text).
BLOCKS = {
    "GPT-3 A": ("gpt3-175b", 320_000, "cluster-a", 1.0),
    "GPT-3 B": ("gpt3-175b", 320_000, "cluster-b", 1.0),
    "Turing-NLG A": ("turing-nlg", 512, "cluster-a", 4.25),
    "Turing-NLG B": ("turing-nlg", 512, "cluster-b", 3.61),
}


@frozen
class Cell:
    """Cell with its place, its printed and its computed value."""

    block: str
    policy: str
    dp: int
    wp: int
    p: int
    printed: float
    computed: float

    @property
    def error(self) -> float:
        """The relative difference."""
        return abs(self.computed / self.printed - 1)

    @property
    def name(self) -> str:
        """The cell's place in words."""
        return f"{self.block} {self.policy} ({self.dp}, {self.wp}, {self.p})"


def printed_table() -> dict[str, dict[tuple[int, int, int], float]]:
    """Return the printed values.

    They are column ("GPT-3 A PR") -> (DP, WP, P) -> value.
    """
    data = tomllib.loads(Path(__file__).with_name("table_5_6.toml").read_text(encoding="utf-8"))
    table: dict[str, dict[tuple[int, int, int], float]] = {name: {} for name in data["columns"]}
    for row in data["rows"]:
        for name, value in zip(data["columns"], row["printed"], strict=True):
            if value >= 0:
                table[name][tuple(row["way"])] = value
    return table


def block_models(block: str) -> tuple[Transformer, Machine]:
    """Return a block's model and cluster, with the thesis' mini-batch."""
    model, batch, machine, _ = BLOCKS[block]
    return evolve(load_transformer(model), batch=batch), load_machine(machine)


def reproduce(reading: Reading = TABLE_5_6) -> tuple[Cell, ...]:
    """Compute every cell that is printed."""
    table = printed_table()
    return tuple(cell for block in BLOCKS for cell in _block(block, table, reading))


def _block(block: str, table: dict[str, dict[tuple[int, int, int], float]], reading: Reading) -> list[Cell]:
    places = [(policy, way, value) for policy in ("PR", "AR") for way, value in table[f"{block} {policy}"].items()]
    terms = thesis_terms(columns([Way(*way, policy, 1) for policy, way, _ in places]), *block_models(block), reading)
    printed = np.array([value for _, _, value in places])
    moved = communication(terms)
    decided = printed > 1.05  # below, compute may decide
    unit = float(np.median(moved[decided] / printed[decided]))
    computed = np.maximum(moved / unit, 1 / BLOCKS[block][3])
    return [
        Cell(block, policy, *way, value, float(found))
        for (policy, way, value), found in zip(places, computed, strict=True)
    ]


def communication(terms: Terms) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the seconds of all that moves."""
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = terms.storage + terms.optimiser + terms.gpu
    return found
