"""The manual: written from the declarations, and up to date."""

from __future__ import annotations

from pathlib import Path

import pytest
from cuts.ops import Registry
from cuts.ops.gradient.differentiable import differentiability
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.manual import entry, manual
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR

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


@pytest.mark.parametrize("op", REGISTRY)
def test_an_entry_says_of_gradients_what_the_uses_of_its_operation_show(op: str) -> None:
    gradients = Gradients(REGISTRY)
    said = {*differentiability(REGISTRY[op]).derived, *differentiability(REGISTRY[op]).stated}
    asked, found = set[str](), set[str]()
    for use in (use for use in (*DIFFERENTIABLE, *SCALAR, *FLAT) if use.op == op):
        instance = use.instance
        given = zip(instance.inputs, use.types, strict=False)
        wanted = [
            formal for formal, type_ in given if formal is not None and type_ is not None and type_.dtype.is_float
        ]
        made = zip(instance.outputs, instance.output_types, strict=True)
        steps = gradients.steps(instance, wanted, [result for result, type_ in made if type_.dtype.is_float])
        asked.update(wanted)
        found.update(name[1:] for step in steps for name in step.outputs if name[1:] in wanted)
    assert operands(found) == said & operands(asked)


def operands(names: set[str]) -> set[str]:
    """Return the operands of a declaration behind formal names: of any number of operands, each has the number of its
    place.
    """
    return {name.rpartition("_")[0] if name.rpartition("_")[2].isdigit() else name for name in names}
