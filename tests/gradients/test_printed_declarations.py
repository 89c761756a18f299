"""Item by item parsing of derived declarations equals parsing them whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.ops.gradient.gradients import Gradients
from cuts.ops.language.text.parser import _written_items, parse, parse_written

IMAGE, GATES = (2, 8, 12, 12), (20, 2, 3)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("conv", (IMAGE, (8, 8, 3, 3)), {"pads": (1, 1, 1, 1)}),
        ("conv", (IMAGE, (8, 8, 3, 3)), {"strides": (2, 2)}),
        ("batch_norm", (IMAGE, (8,), (8,), (8,), (8,)), {}),
        ("max_pool", (IMAGE,), {"kernel_shape": (2, 2), "strides": (2, 2)}),
        ("lstm", (GATES, (1, 16, 3), (1, 16, 4)), {}),
    ],
)
def test_item_by_item_parsing_equals_whole_parsing(
    op: str, shapes: tuple[tuple[int, ...], ...], attributes: Mapping[str, Any]
) -> None:
    registry = Registry.builtin()
    instance = registry[op].instantiate([TensorType(DType.F32, shape) for shape in shapes], attributes)
    gradients = Gradients(registry)
    operands = [name for name in instance.inputs if name]
    gradients.steps(instance, operands, instance.outputs)
    gradients.with_saved_results(instance, operands, instance.outputs, instance.outputs)
    assert gradients.texts
    together = registry.extend(*(Source(f"{name}.cuts", text) for name, text in gradients.texts.items()))
    for name, text in gradients.texts.items():
        source = Source(f"{name}.cuts", text)
        (whole,), found = parse(source), parse_written(source)
        assert found == whole
        assert repr(found.items) == repr(whole.items)
        assert found.span == whole.span
        assert gradients.registry[name].text == text.rstrip()
        assert gradients.registry[name].digest == together[name].digest


def test_equal_items_are_parsed_once() -> None:
    _written_items.cache_clear()
    for number in range(5):
        text = f'op made_{number} "of {number}" {{\n  in x: f32[{number}]\n  out y: f32[8]\n  y[i] = x[0] + 1\n}}\n'
        parse_written(Source("made.cuts", text))
    assert _written_items.cache_info().misses == 5 + 2
