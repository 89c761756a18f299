"""ONNX's operations in every element type, against ONNX Runtime.

Each node test of ONNX is run in every type that the schema allows and ONNX Runtime takes, ends of types included,
imported and evaluated by the reference. A fixed sample runs by default, all of them with
`CUTS_HYPOTHESIS_PROFILE=nightly`.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from .onnx_types import Variant, fault, variants

pytestmark = pytest.mark.filterwarnings("ignore")  # ONNX's reference warns about NumPy's conversions
WHOLE = os.environ.get("CUTS_HYPOTHESIS_PROFILE") == "nightly"
#: One variant of so many runs by default, and in how many parts.
_EVERY, _PARTS = 5, 4

#: Variants for which ONNX Runtime, or its machine's types, is no oracle at the ends of types: by operation,
#: and by a part of the variant's name.
_DISPUTED_VARIANTS = {
    ("ConvTranspose", "ends"): "a tap that reaches past the input is a product with 0, which an infinity makes NaN",
    ("GridSample", "ends"): "a neighbour of weight 0 is a product with 0; places that are no numbers are none",
    ("DeformConv", "ends"): "offsets that are no numbers name no place",
    ("DFT", "ends"): "what is multiplied by a 0 of a table is left out, infinities too",
    ("STFT", "ends"): "what is multiplied by a 0 of a table is left out, infinities too",
    ("MaxPool", "ends"): "NaN propagates here, as in PyTorch",
    ("Pow", "=i"): "powers of integers are exact and wrap; negative ones are refused by the reference",
    ("Range", "i64 ends"): "how many steps lie between the widest integers overflows there",
    ("ReduceL2", "=i"): "the root of a sum that its type does not hold",
    ("ReduceMean", "i64 ends"): "a sum of the widest integers wraps",
    ("Shrink", "i64 ends"): "computed in f64, where the greatest become 2**63: it saturates here, and wraps on x86",
    ("Shrink", "u64 ends"): "computed in f64, where the greatest become 2**64: it saturates here, and wraps on x86",
    ("BatchNormalization", "training_mode"): "training in several types at once is refused",
}


def is_disputed(variant: Variant) -> bool:
    return any(variant.node.op_type == op and part in variant.name for op, part in _DISPUTED_VARIANTS)


def test_every_dispute_is_about_a_variant() -> None:
    for op, part in _DISPUTED_VARIANTS:
        assert any(variant.node.op_type == op and part in variant.name for variant in variants()), (op, part)


def test_the_variants_cover_operations_and_types() -> None:
    assert len({variant.node.op_type for variant in variants()}) >= 150
    assert len({variant.dtype for variant in variants()}) >= 12


#: Types that our operations take after promotion only.
_BROUGHT_TOGETHER = (
    "test_batchnorm_example T=f16 given", "test_batchnorm_example T1=f16 given", "test_gridsample T1=f16 given",
    "test_gridsample T2=f16 given", "test_shrink_hard T=u8 given", "test_scatternd T=bool given",
    "test_scatter_elements_with_axis T=bool ends", "test_resize_upsample_scales_nearest T1=u8 ends",
)  # fmt: skip


@pytest.mark.parametrize("name", _BROUGHT_TOGETHER)
def test_types_are_brought_together(name: str) -> None:
    assert fault(next(variant for variant in variants() if variant.name == name)) == ""


@pytest.mark.parametrize("part", range(_PARTS))
def test_nodes_match_onnx_runtime_in_every_type(part: int) -> None:
    chosen = variants()[part :: _PARTS * (1 if WHOLE else _EVERY)]
    assert [text for text in (fault(v) for v in chosen if not is_disputed(v)) if text] == []
