"""A part of the sweep over every operation and element type.

Values are ordinary and extreme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cuts.ir.source import Source
from cuts.ir.types import DType, TensorType
from cuts.ops import Registry
from cuts.tests.amounts import NIGHTLY

from ..needs import DEVICES
from .sweep.judging import Judge, near
from .sweep.oracles import ORACLES
from .sweep.running import (
    batches_of_round,
    bind_samples,
    compile_samples,
    judge_reference,
    judge_target,
    made_for,
    samples_of,
    simplify_arrays,
)
from .sweep.samples import Sample, Slot, draw, slots
from .sweep.values import KINDS, operands

pytestmark = pytest.mark.long

REGISTRY = Registry.builtin()
ROUND = batches_of_round(REGISTRY)


def test_every_operation_is_drawn_in_every_type() -> None:
    assert [slot for slot in slots(REGISTRY) if draw(REGISTRY, slot, 1, 0) is None] == []


def test_batches_cover_all_slots_and_are_reproducible() -> None:
    whole = [sample for batch in range(ROUND) for sample in samples_of(REGISTRY, 1, batch)]
    assert len(whole) == len(slots(REGISTRY))
    assert {sample.op for sample in whole} == set(REGISTRY)
    assert samples_of(REGISTRY, 1, 3) == samples_of(REGISTRY, 1, 3) != samples_of(REGISTRY, 2, 3)


def test_an_unlisted_operation_is_drawn_from_its_declaration() -> None:
    text = """op mine "a window" {
  type T: int
  in x: T[...s, M], w: T[M]
  attr axis: axis(s) = 0, mode: "a" | "b" = "a"
  out y: T[...s]
  y[...i] = sum[j < M] x[...i, j] * w[j]
}"""
    registry = REGISTRY.extend(Source("own.cuts", text))
    drawn = [draw(registry, Slot("mine", DType.I8), 1, number) for number in range(20)]
    found = [sample for sample in drawn if sample is not None]
    assert len(found) > 10
    assert {sample.attributes.get("mode") for sample in found} >= {"a", "b"}
    report = judge_reference(registry, found, range(7))
    assert (report.cases, report.opinions) == (7 * len(found), 0)


def test_a_sample_survives_json() -> None:
    for sample in samples_of(REGISTRY, 1, ROUND):
        assert Sample.of(sample.record) == sample


@pytest.mark.parametrize("part", range(4))
def test_the_reference_agrees_with_numpy(part: int) -> None:
    for batch in range(part, (4 if NIGHTLY else 1) * ROUND, 4):
        report = judge_reference(REGISTRY, samples_of(REGISTRY, 1, batch), range(3))
        assert [f"{d.sample.text}: {d.text}" for d in report.differences] == []


def test_most_operations_have_a_second_opinion() -> None:
    assert set(ORACLES) <= set(REGISTRY)
    samples = [sample for batch in range(ROUND) for sample in samples_of(REGISTRY, 1, batch)]
    report = judge_reference(REGISTRY, samples, range(1))
    assert report.opinions > report.cases / 2


#: Batches that kernels are compared on: an eighth of a round takes twenty seconds.
SHOWN_BATCHES = range(ROUND) if NIGHTLY else range(0, ROUND, 8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("batch", SHOWN_BATCHES)
def test_kernels_agree_with_the_reference(batch: int, device: str) -> None:
    report = judge_target(REGISTRY, samples_of(REGISTRY, 1, batch), range(14), device, batch // 3)
    assert [f"{d.sample.text}: {d.text} on {d.operands}" for d in report.differences] == []


@pytest.mark.parametrize("batch", range(ROUND) if NIGHTLY else range(3, ROUND, 8))
def test_kernels_compile_for_a_machine_with_matrix_instructions(batch: int) -> None:
    """Layouts and matrix instructions are for GPUs alone.

    Nothing else here would find a graph that they do not suit.
    """
    made = made_for(REGISTRY, samples_of(REGISTRY, 1, batch), "cuda:h200", batch // 3)
    assert made.kernels and made.groups


# ---- the judge


def judge(op: str, *types: TensorType, given: Mapping[str, Any], **attributes: Any) -> Judge:
    """Return a judge of one operation on given numbers."""
    return Judge(REGISTRY[op].instantiate(types, attributes).program, given)


def test_rounding_is_explained_and_nothing_else() -> None:
    x = np.array([1.5, -2.0, 3.0], np.float32)
    tanh = judge("tanh", TensorType(DType.F32, (3,)), given={"x": x})
    right = np.tanh(x)
    assert not tanh.wrong("y", right).any()
    assert not tanh.wrong("y", np.nextafter(right, np.float32(2))).any()
    assert tanh.wrong("y", right * np.float32(1 + 1e-5)).all()
    assert tanh.wrong("y", np.full(3, np.nan, np.float32)).all()
    assert tanh.wrong("y", np.full(3, np.inf, np.float32)).all()


def test_an_overflow_on_the_way_is_explained() -> None:
    type_ = TensorType(DType.F32, (1,))
    big = np.array([3e38], np.float32)
    softsign = judge("hypot", type_, type_, given={"a": big, "b": big})
    assert not softsign.wrong("y", np.array([np.inf], np.float32)).any()
    assert softsign.wrong("y", np.array([-np.inf], np.float32)).all()


def test_cancellation_is_explained_by_what_the_declaration_loses() -> None:
    x = np.array([[123.456] * 1003], np.float32)
    scale = np.ones(1003, np.float32)
    norm = judge("layer_norm", TensorType(DType.F32, x.shape), TensorType(DType.F32, scale.shape),
                 given={"x": x, "scale": scale})  # fmt: skip
    assert norm.wrong("y", np.full(x.shape, 0.13, np.float32)).all()


def test_a_fused_product_of_a_literal_is_explained() -> None:
    """0.2 is no number of single precision.

    0.2f * 5 - 1 is 1.5e-8 where it is rounded once.
    """
    x = np.full(9, 5, np.float32)
    slope = judge("hard_sigmoid", TensorType(DType.F32, x.shape), given={"x": x}, beta=-1.0)
    assert not slope.wrong("y", np.full(9, np.float32(0.2) * np.float64(5) - 1).astype(np.float32)).any()
    assert slope.wrong("y", np.full(9, 1e-5, np.float32)).all()


def test_summation_order_is_explained_lost_terms_are_not() -> None:
    """Terms of 1e5 that cancel leave the rounding errors of their order."""
    row, places = TensorType(DType.F32, (2,)), TensorType(DType.I32, (3,))
    given = {"x": np.zeros(2, np.float32), "indices": np.zeros(3, np.int32),
             "updates": np.array([1e5, 1e-3, -1e5], np.float32)}  # fmt: skip
    types = (row, places, TensorType(DType.F32, (3,)))
    met = judge("scatter_elements", *types, given=given, reduction="add", atomic=True)
    assert not met.wrong("y", np.array([9.765625e-04, 0], np.float32)).any()
    assert not met.wrong("y", np.array([0, 0], np.float32)).any()
    assert met.wrong("y", np.array([1, 1e-3], np.float32)).tolist() == [True, True]


def test_integers_are_exact_and_of_their_type() -> None:
    type_ = TensorType(DType.I8, (2,))
    total = judge("add", type_, type_, given={"a": np.array([127, 1], np.int8), "b": np.array([1, 1], np.int8)})
    assert total.wrong("y", np.array([-128, 3], np.int8)).tolist() == [False, True]
    assert total.wrong("y", np.array([-128, 2], np.int16)).all()


def test_near_follows_the_type() -> None:
    half = np.array([1.0, 65504.0, np.nan, 1e-7])
    assert near(half.astype(np.float16), half, DType.F16, 4).all()
    assert not near(np.array([np.inf], np.float32), np.array([65504.0]), DType.F32, 4).any()


def test_a_difference_is_reduced_to_its_cause() -> None:
    arrays = {"x": np.arange(2, 66), "y": np.arange(2, 10)}

    def shows(given: Mapping[str, Any]) -> str:
        return "seen" if 40 in given["x"] else ""

    least, text = simplify_arrays(arrays, shows, "")
    assert text == "seen"
    assert sorted(set(least["x"].tolist())) == [1, 40]
    assert set(least["y"].tolist()) == {1}


def test_wrong_kernels_are_reported() -> None:
    """Another operation replaces the tested one.

    The judge must see every difference that matters.
    """
    type_ = TensorType(DType.F32, (4, 5))
    use = bind_samples(REGISTRY, [Sample("reduce_max", (type_,), {"axes": (1,)})])[0]
    found = bind_samples(REGISTRY, [Sample("reduce_min", (type_,), {"axes": (1,)})])
    reported = 0
    for number in range(len(KINDS)):
        given = operands(use.instance.program, use.types, use.seed, number)
        other = compile_samples(REGISTRY, found, "reference", "no-fusion").run({found[0].mark + "x": given["x"]})
        reported += bool(Judge(use.instance.program, given).wrong("y", other[found[0].mark + "y"]).any())
    assert reported >= len(KINDS) - 1  # one set has the same number everywhere


@pytest.mark.parametrize("device", DEVICES)
def test_an_infinite_literal_has_its_type(device: str) -> None:
    one, none = TensorType(DType.F64, (1,)), TensorType(DType.F64, ())
    sample = Sample("adam", (one, one, none, one, one, none), {"beta2": -math.inf})
    assert judge_target(REGISTRY, [sample], range(2), device).differences == []


def _type(dtype: DType, *shape: int) -> TensorType:
    return TensorType(dtype, shape)


#: Samples that were wrong on some device: places along an axis of one element, and many updates that meet.
ONCE_WRONG = (
    Sample("gather_grad", (_type(DType.F16, 17, 17), _type(DType.I64, 17, 17)), {"axis": 0, "size": 1}),
    Sample("max_unpool", (_type(DType.I8, 1, 1, 17, 17), _type(DType.I32, 1, 1, 17, 17)), {"sizes": (1, 1)}),
    Sample("max_unpool", (_type(DType.F32, 2, 4, 3, 4), _type(DType.I64, 2, 4, 3, 4)), {"sizes": (4, 2)}),
    Sample(
        "scatter_elements", (_type(DType.F64, 17, 17), _type(DType.I64, 17, 17), _type(DType.F64, 17, 17)),
        {"reduction": "add", "atomic": True, "axis": -2},
    ),
)  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("turn", range(2))
def test_what_was_wrong_is_right(turn: int, device: str) -> None:
    report = judge_target(REGISTRY, ONCE_WRONG, range(28), device, turn)
    assert [f"{d.sample.text}: {d.text}" for d in report.differences] == []
