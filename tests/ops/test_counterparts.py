"""Reference against other libraries, for every operation.

It covers every element type, size and special value.

By day each operation has a fixed part of the cases, chosen by a hash; at night it has all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
from attrs import frozen
from cuts.ir.types import DType
from cuts.ops import Registry
from cuts.ops.reference import evaluate
from cuts.tests.amounts import NIGHTLY
from cuts.tests.operations import i64, uses

from ..fuzz.sweep.judging import near
from ..fuzz.sweep.samples import Sample, Slot, draw, slots
from ..fuzz.sweep.values import KINDS, adds_up, conversions, operands, transforms
from .counterparts import (
    COUNTERPARTS,
    DEPARTURES,
    PENDING,
    PREPARATIONS,
    SINGLE,
    WITHOUT,
    Array,
    missing_requirement,
    opinion,
)

REGISTRY = Registry.builtin()
#: Kinds of values: those of the sweep, and rows that are masked whole.
VALUES = (*(kind.__name__.strip("_") for kind in KINDS), "paired", "masked")
#: Sizes, and samples that are drawn to find one of each.
SIZES, DRAWN_CASES = ("known", "empty", "one", "odd", "other"), 12
#: Cases of an operation by day.
BY_DAY = 24
#: Uses where special values meet attributes, besides those of the suite.
USES = (
    uses("max_pool_positions", (2, 1, 5), kernel_shape=(3,), strides=(2,), pads=(1, 1)),
    uses("max_pool_positions", (1, 2, 5, 4), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 1, 1), dilations=(2, 1)),
    uses("max_pool", (1, 2, 5, 4), kernel_shape=(3, 2), strides=(2, 1), pads=(1, 1, 1, 1), ceil_mode=True),
    uses("average_pool", (1, 2, 5, 7), kernel_shape=(3, 2), strides=(2, 3), pads=(1, 1, 1, 1), ceil_mode=True),
    uses("average_pool", (1, 2, 7), kernel_shape=(2,), strides=(3,), ceil_mode=True, count_include_pad=True),
    *(uses(op, (4, 3, 2), i64(4, 2), *weights, ignore_index=1, reduction=how)
      for op in ("nll_loss", "cross_entropy") for weights in ((), ((3,),)) for how in ("none", "mean", "sum")),
    *(uses("embedding_bag", (5, 2), i64(3, columns), None, i64(3), mode=mode)
      for mode in ("sum", "mean", "max") for columns in (4, 0)),
    *(uses(op, (3, 5), axis=axis) for op in ("softmax", "log_softmax") for axis in (0, 1)),
)  # fmt: skip


@frozen
class Case:
    """Use of an operation, and the kind of its operands' values."""

    sample: Sample
    values: str

    @property
    def text(self) -> str:
        """The case on one line."""
        return f"{self.sample.text} of {self.values} values"


def size_of(sample: Sample, number: int) -> str:
    """Return the class of a sample's sizes."""
    extents = [d for t in sample.types if t is not None for d in t.shape]
    if 0 in extents:
        return "empty"
    if all(d == 1 for d in extents):
        return "one"
    return "odd" if any(d > 1 and d % 2 for d in extents) else "other" if number else "known"


def cases_of(op: str) -> Iterator[Case]:
    """Yield an operation's cases by element type, class of sizes, values."""
    for slot in (slot for slot in slots(REGISTRY) if slot.op == op):
        yield from (case for case in _cases_of_slot(slot) if case.values not in left_out(op))
    yield from special_cases(op)


def left_out(op: str) -> frozenset[str]:
    """Return the kinds of values that an operation is not compared on."""
    return DEPARTURES[op].without if op in DEPARTURES else frozenset()


def special_cases(op: str) -> Iterator[Case]:
    """Yield the cases of an operation that the daily profile includes."""
    for use in USES:
        if use.op == op:
            yield from (
                Case(Sample(op, use.types, use.attributes), values) for values in VALUES if values not in left_out(op)
            )


#: Operations whose tables and masks, in the type of their operands, have no place in 8 bits.
OPERATIONS_OF_WIDE_TYPES = ("dft", "logcumsumexp")


def _cases_of_slot(slot: Slot) -> Iterator[Case]:
    chosen: dict[str, list[Sample]] = {size: [] for size in SIZES}
    for number in range(DRAWN_CASES):
        sample = draw(REGISTRY, slot, 7, number)
        if sample and not (
            sample.op in OPERATIONS_OF_WIDE_TYPES
            and any(t and t.dtype.is_float and t.dtype.size == 1 for t in sample.types)
        ):
            chosen[size_of(sample, number)].append(sample)
    for samples in chosen.values():
        for sample in samples[: 4 if NIGHTLY else 2]:
            yield from (Case(sample, values) for values in VALUES)


def part(cases: list[Case], count: int) -> list[Case]:
    """Return a fixed part of the cases."""
    return sorted(cases, key=lambda case: zlib.crc32(case.text.encode()))[:count]


def values_of(case: Case) -> dict[str, Array]:
    """Return the operands of a case."""
    instance = case.sample.instance(REGISTRY)
    types = {n: t for n, t in zip(instance.inputs, case.sample.types, strict=False) if n is not None and t is not None}
    number = 1 if case.values == "masked" else VALUES.index(case.values)
    found = operands(instance.program, types, zlib.crc32(case.sample.text.encode()), number)
    if case.values == "masked" and not conversions(instance.program) and not transforms(instance.program):
        _mask_rows(found, int(instance.attributes.get("axis") or 0) if "axis" in instance.attributes else -1)
    if prepare := PREPARATIONS.get(case.sample.op):
        prepare(found, instance.attributes)
    return found


def _mask_rows(arrays: Mapping[str, Array], axis: int) -> None:
    """Fill the first row along an axis of every tensor of floats with minus infinity."""
    for array in arrays.values():
        if array.dtype.kind not in "iub" and array.ndim and -array.ndim <= axis < array.ndim:
            rows = np.moveaxis(array, axis, -1)
            rows[tuple(slice(0, 1) for _ in rows.shape[:-1])] = -np.inf


def fault(case: Case) -> str:
    """Return a case's first difference; nothing without one or without a counterpart."""
    instance = case.sample.instance(REGISTRY)
    given = values_of(case)
    wanted = opinion(
        case.sample.op, instance.attributes, [None if n is None else given.get(n) for n in instance.inputs]
    )
    if wanted is None:
        return ""
    found = evaluate(instance.program, given, checked=False)
    for name, theirs in zip(instance.outputs, wanted, strict=True):
        ours, dtype = found[name], instance.program.tensors[name].dtype
        if ours.shape != theirs.shape:
            return f"{case.text}: {name} has shape {ours.shape}, expected {theirs.shape}"
        good = agrees(ours, theirs, dtype, case.sample.op in SINGLE, adds_up(instance.program))
        if departure := DEPARTURES.get(case.sample.op):
            good |= departure.allowed(ours, theirs)
        if not good.all():
            at = tuple(int(n) for n in np.argwhere(~good)[0])
            return f"{case.text}: {name}{list(at)} is {ours[at]!r}, expected {theirs[at]!r}"
    return ""


def agrees(ours: Array, theirs: Array, dtype: DType, single: bool, sums: bool) -> Array:
    """Compare integers exactly, floats within the precision that both share."""
    if not dtype.is_float:
        return np.asarray(ours == theirs)
    good = near(ours, theirs, DType.F32 if single else DType.F64, 1 << (4 if single else 12))
    most = float(np.finfo(np.float32 if single else np.float64).max) / 16  # a step may overflow that is not the last
    good |= np.isinf(theirs) & (np.abs(ours) >= most) & (np.signbit(ours) == np.signbit(theirs))
    if sums and ours.size:
        with np.errstate(all="ignore"):
            largest = np.max(np.where(np.isfinite(theirs), np.abs(theirs), 0.0))
            good |= np.abs(ours - theirs) <= 1e-9 * (1 + largest)
    return good


def test_every_operation_has_a_counterpart_or_a_reason() -> None:
    assert COUNTERPARTS.keys() & WITHOUT.keys() == set()
    assert COUNTERPARTS.keys() | WITHOUT.keys() == set(REGISTRY)
    assert set(DEPARTURES) | set(PENDING) <= set(COUNTERPARTS)
    assert all(reason.endswith(".") for reason in WITHOUT.values())


@pytest.mark.parametrize("op", sorted(COUNTERPARTS))
def test_reference_agrees_with_the_counterpart(op: str) -> None:
    if reason := missing_requirement(op):
        pytest.skip(reason)
    cases = list(cases_of(op))
    faults = [
        text for case in (cases if NIGHTLY else [*part(cases, BY_DAY), *special_cases(op)]) if (text := fault(case))
    ]
    if faults and op in PENDING:
        pytest.xfail(PENDING[op])
    assert faults == []
