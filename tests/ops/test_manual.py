"""The manual of `docs/make_ops.py` and `cuts ops --markdown`."""

from __future__ import annotations

import re

import pytest
from cuts.ops import Registry
from cuts.ops.gradient.differentiable import differentiability
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.manual import entry, manual
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR

REGISTRY = Registry.builtin()


def test_the_manual_lists_operations_by_declaring_file() -> None:
    text = manual(REGISTRY)
    assert sorted(re.findall(r"^### (\w+)$", text, flags=re.MULTILINE)) == sorted(REGISTRY)
    for part in text.split("\n## ")[1:]:
        file = f"{part.split()[0].lower()}.cuts"
        names = re.findall(r"^### (\w+)$", part, flags=re.MULTILINE)
        assert [name for name in names if not REGISTRY[name].span.source.name.endswith(file)] == []


def test_the_manual_has_an_introduction_and_whole_entries() -> None:
    text = manual(REGISTRY)
    assert text.startswith("# Operations\n")
    assert [name for name, decl in REGISTRY.items() if entry(decl, REGISTRY) not in text] == []


def test_an_entry_states_costs_of_matrix_products() -> None:
    text = entry(REGISTRY["matmul"])
    assert "in a: T[...s], b: T[...t]" in text
    assert "y[...i, ...m, ...n] = sum[k < K] a[...fit(i, p), ...m, k] * b[...fit(i, q), k, ...n]" in text
    assert "Cost: 2 * K per element of `y`." in text
    assert "Gradient: derived for `a`, `b`." in text
    assert "d_a[i0, i1] = sum[r0 < 3] d_y[i0, r0] * b[i1, r0]" in text


def test_an_entry_lists_algorithms_guards_and_steps() -> None:
    text = entry(REGISTRY["conv"])
    assert "Algorithm `winograd_2x2`, when `R == [3, 3]" in text
    assert "`winograd_filter`, `winograd_input`, `reshape`, `matmul`, `winograd_output`." in text


@pytest.mark.parametrize(
    ("op", "lines"),
    [
        ("floor", ["No gradient for `x`: zero, as the result is constant between jumps."]),
        ("argmax", ["No gradient for `x`: the results are not real numbers."]),
        ("hardmax", ["No gradient for `x`: its elements are only compared by size."]),
        ("gather_elements", ["Gradient: derived for `x`.", "No gradient for `indices`: integers."]),
        ("where", ["Gradient: derived for `a`, `b`.", "No gradient for `condition`: truth values."]),
        ("softmax", ["Gradient: stated for `x`: `dx = softmax_grad(y, dy, axis: axis)`."]),
    ],
)
def test_an_entry_says_which_operands_have_a_gradient(op: str, lines: list[str]) -> None:
    found = entry(REGISTRY[op])
    assert [line for line in lines if line not in found] == []


@pytest.mark.parametrize("op", REGISTRY)
def test_an_entry_lists_gradients_of_its_uses(op: str) -> None:
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
    """Return a declaration's operands with formal names.

    Of any number of operands, each has the number of its place.
    """
    return {name.rpartition("_")[0] if name.rpartition("_")[2].isdigit() else name for name in names}
