"""Prints Table 5.6 of the thesis: printed and computed values."""

from __future__ import annotations

from cuts.cluster.planning.table import BLOCKS, Cell, printed_table, reproduce


def rows(cells: tuple[Cell, ...]) -> list[str]:
    """Return tables by model; a star marks differences above 1 %."""
    found = {(c.block, c.policy, (c.dp, c.wp, c.p)): c for c in cells}
    lines: list[str] = []
    for model in dict.fromkeys(block.rpartition(" ")[0] for block in BLOCKS):
        columns = [(b, policy) for b in BLOCKS if b.startswith(model) for policy in ("PR", "AR")]
        heads = [f"{block} {policy}" for block, policy in columns]
        lines += ["| (DP, WP, P) | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for way in printed_table()["GPT-3 A PR"]:
            values = [_text(found.get((block, policy, way))) for block, policy in columns]
            lines.append(f"| {way} | " + " | ".join(values) + " |")
        lines.append("")
    return lines[:-1]


def _text(cell: Cell | None) -> str:
    if cell is None:
        return ""
    return f"{cell.printed:g} / {cell.computed:.2f}" + (" *" if cell.error > 0.01 else "")


if __name__ == "__main__":
    print("\n".join(rows(reproduce())))
