"""The manual: written from the declarations, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.ops import Registry
from cuts.ops.differentiable import differentiability
from cuts.ops.manual import entry, manual
from cuts.ops.manual_gradients import sample_gradient

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
    assert "Gradient: derived for `a`, `b`." in text
    assert "d_a[i0, i1] = sum[r0 < 3] d_y[i0, r0] * b[i1, r0]" in text


def test_an_entry_lists_algorithms_with_their_guards_and_steps() -> None:
    text = entry(REGISTRY["conv"])
    assert "Algorithm `winograd_2x2`, when `R == [3, 3]" in text
    assert "`winograd_filter`, `winograd_input`, `reshape`, `matmul`, `winograd_output`." in text


@pytest.mark.parametrize(
    ("op", "lines"),
    [
        ("floor", ["No gradient for `x`: zero, as the result is constant between jumps."]),
        ("argmax", ["No gradient for `x`: the results are not real numbers."]),
        ("hardmax", ["No gradient for `x`: its elements are only told apart by size."]),
        ("gather_elements", ["Gradient: derived for `x`.", "No gradient for `indices`: integers."]),
        ("where", ["Gradient: derived for `a`, `b`.", "No gradient for `condition`: truth values."]),
        ("softmax", ["Gradient: stated for `x`: `dx = softmax_grad(y, dy, axis: axis)`."]),
    ],
)
def test_an_entry_says_which_operands_have_a_gradient(op: str, lines: list[str]) -> None:
    found = entry(REGISTRY[op])
    assert [line for line in lines if line not in found] == []


def test_what_entries_say_of_gradients_is_what_is_derived() -> None:
    samples = {op: sample for op in REGISTRY if (sample := sample_gradient(REGISTRY[op], REGISTRY)) is not None}
    assert len(samples) > 100, "shapes are found by trying a few"
    for op, sample in samples.items():
        said = differentiability(REGISTRY[op])
        present = {operand.name for operand, type_ in zip(REGISTRY[op].operands, sample.types, strict=True) if type_ is not None}
        found = {name[1:] for step in sample.steps for name in step.outputs} & present
        assert found == {*said.derived, *said.stated} & present, op
