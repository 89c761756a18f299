"""The manual: written from the declarations, and up to date."""

from __future__ import annotations

from pathlib import Path

from cuts.ops import Registry
from cuts.ops.manual import entry, manual

REGISTRY = Registry.builtin()
MANUAL = Path(__file__).parents[2] / "docs" / "ops.md"


def test_the_manual_is_what_the_declarations_say() -> None:
    assert MANUAL.read_text(encoding="utf-8") == manual(REGISTRY), "run: python docs/make_ops.py"


def test_every_operation_has_an_entry() -> None:
    text = MANUAL.read_text(encoding="utf-8")
    assert [name for name in REGISTRY if f"\n### {name}\n" not in text] == []


def test_an_entry_says_what_a_product_of_matrices_costs() -> None:
    text = entry(REGISTRY["matmul"])
    assert "in a: T[...s], b: T[...t]" in text
    assert "y[...i, ...m, ...n] = sum[k < K] a[...fit(i, p), ...m, k] * b[...fit(i, q), k, ...n]" in text
    assert "Cost: 2 * K per element of `y`." in text
    assert "Gradient: derived." in text


def test_an_entry_lists_algorithms_with_their_guards() -> None:
    assert "Algorithm `winograd_2x2`, when `R == [3, 3]" in entry(REGISTRY["conv"])
