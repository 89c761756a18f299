"""Worked example of DeepCuts, section 5.1 and Figures 3 and 4.

A 1x1 convolution and a ReLU are fused at both levels.

The set S of the paper: N=1, C=2, K=2, 4x4 pixels; a block computes 2x2 pixels of one output channel with C_input=2, a
thread a row of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import pytest
from attrs import evolve
from cuts.backends.devices import find_target
from cuts.ir.affine import Index, Var, as_index, evaluate, variables
from cuts.ir.dfg import Accumulate, Load, Op, Store, post_order
from cuts.ir.expr import Call, Const, Read
from cuts.ir.kernel import Kernel, phases
from cuts.ir.kernel_items import Barrier, Phase
from cuts.ir.schedule import ReduceDim, ReductionSchedule, Schedule, SegmentSchedule, Staging, TileDim
from cuts.ir.segment import FusedGroup, Output, Reduction, Segment
from cuts.ir.text import parse_ir, print_ir
from cuts.ir.types import DType, TensorType
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from cuts.passes.lowering.substitute_phase import substitute_phase

from .test_extraction import expand, mark

F32 = DType.F32
TYPES = {"x": TensorType(F32, (1, 2, 4, 4)), "f": TensorType(F32, (2, 2))}
TYPES |= {name: TensorType(F32, (1, 2, 4, 4)) for name in ("acc", "t", "y")}
CHANNEL = Var("c", 2)


def _axes(suffix: str) -> tuple[Var, ...]:
    return tuple(Var(name + suffix, extent) for name, extent in (("n", 1), ("k", 2), ("p", 4), ("q", 4)))


def _at(*axes: Var) -> tuple[Index, ...]:
    return tuple(as_index(a) for a in axes)


def _tiles(axes: tuple[Var, ...]) -> tuple[TileDim, ...]:
    return tuple(
        TileDim((a,), block, thread) for a, (block, thread) in zip(axes, ((1, 1), (1, 1), (2, 1), (2, 2)), strict=True)
    )


def _relu(value: Read) -> Call:
    return Call("max", (value, Const(0.0, F32)))


def register_level() -> Kernel:
    """Figure 4 (c): the ReLU takes the convolution's value from its register."""
    axes = _axes("")
    n, k, p, q = axes
    product = Call("mul", (Read("x", _at(n, CHANNEL, p, q)), Read("f", _at(k, CHANNEL))))
    output = Output("y", _at(*axes), _relu(Read("acc", _at(*axes))))
    group = FusedGroup(
        (Segment(axes, (Reduction("acc", (CHANNEL,), "sum", product),), (output,)),), TYPES, ("x", "f"), ("y",)
    )
    return lower(group, Schedule((_convolution(axes),)), {}, find_target("cuda:h200"))


def shared_level() -> Kernel:
    """Figure 4 (b): the ReLU reads the convolution's tile in shared memory."""
    axes, after = _axes(""), _axes("2")
    n, k, p, q = axes
    product = Call("mul", (Read("x", _at(n, CHANNEL, p, q)), Read("f", _at(k, CHANNEL))))
    first = Segment(
        axes, (Reduction("acc", (CHANNEL,), "sum", product),), (Output("t", _at(*axes), Read("acc", _at(*axes))),)
    )
    second = Segment(after, (), (Output("y", _at(*after), _relu(Read("t", _at(*after)))),))
    group = FusedGroup((first, second), TYPES, ("x", "f"), ("y",), ("t",))
    return lower(group, Schedule((_convolution(axes), SegmentSchedule(_tiles(after)))), {}, find_target("cuda:h200"))


def _convolution(axes: tuple[Var, ...]) -> SegmentSchedule:
    reduction = ReductionSchedule((ReduceDim((CHANNEL,), 2),), (Staging(0), Staging(1)))
    return SegmentSchedule(_tiles(axes), (reduction,))


def coordinates(kernel: Kernel, block: int, thread: int) -> Mapping[Var, int]:
    """Return the values of the block's and thread's coordinates."""
    given = {"blk": block, "tid": thread}
    values: dict[Var, int] = {}
    for define in kernel.defines:
        for variable in variables(define.value):
            values.setdefault(variable, given.get(variable.name, 0))
        values[define.var] = evaluate(define.value, values)
    return values


def scalar(kernel: Kernel, block: int, thread: int | None) -> list[Phase]:
    """Return compute and exit phases as scalar graphs.

    They are the block's, or with a thread given that thread's.
    """
    values = dict(coordinates(kernel, block, thread or 0))
    if thread is None:
        values = {v: x for v, x in values.items() if v.name.startswith("b")}
    found = []
    for phase in phases(kernel.items):
        if phase.kind != "fetch" and not phase.name.endswith("init"):
            fixed = substitute_phase(phase, values)
            found.append(evolve(fixed, roots=tuple(dict.fromkeys(expand(fixed.roots))), shares=(), unrolled=()))
    return found


def census(phase: Phase) -> Counter[str]:
    """Count a scalar graph's nodes by the labels of the figures."""
    labels: Counter[str] = Counter()
    for node in post_order(phase.roots):
        if isinstance(node, (Load, Store)):
            labels[f"{'L' if isinstance(node, Load) else 'S'} {node.space} {node.buffer}"] += 1
        elif isinstance(node, Op):
            labels[node.fn] += 1
        elif isinstance(node, Accumulate):
            labels[node.combine] += 1
    return labels


LEVELS: Mapping[str, Callable[[], Kernel]] = {"register": register_level, "shared": shared_level}


@pytest.mark.parametrize("level", LEVELS)
def test_kernel_of_the_block(level: str, golden: Callable[[str], None]) -> None:
    kernel = LEVELS[level]()
    golden(print_ir(kernel))
    assert parse_ir(print_ir(kernel)) == kernel


@pytest.mark.parametrize("level", LEVELS)
def test_kernel_of_the_thread(level: str, golden: Callable[[str], None]) -> None:
    kernel = extract(LEVELS[level]())
    golden(print_ir(kernel))
    assert parse_ir(print_ir(kernel)) == kernel


@pytest.mark.parametrize("level", LEVELS)
def test_graph_of_the_block(level: str, golden: Callable[[str], None]) -> None:
    golden("\n".join(print_ir(phase) for phase in scalar(LEVELS[level](), 0, None)))


@pytest.mark.parametrize("level", LEVELS)
def test_graph_of_a_thread(level: str, golden: Callable[[str], None]) -> None:
    golden("\n".join(print_ir(phase) for phase in scalar(extract(LEVELS[level]()), 0, 1)))


def test_figure_3c_four_pixels_share_the_filter() -> None:
    compute, _ = scalar(register_level(), 0, None)
    assert census(compute) == {"L shared s0r0s0": 8, "L shared s0r0s1": 2, "mul": 8, "sum": 8}


def test_figure_4c_convolution_and_relu_share_registers() -> None:
    _, leave = scalar(register_level(), 0, None)
    assert census(leave) == {"max": 4, "S global y": 4}


def test_figure_4b_has_a_barrier_before_the_load() -> None:
    kernel = shared_level()
    _, first, second = scalar(kernel, 0, None)
    assert census(first) == {"S shared m1": 4}
    assert census(second) == {"L shared m1": 4, "max": 4, "S global y": 4}
    names = [item.name if isinstance(item, Phase) else type(item) for item in kernel.items]
    assert names.index("s0exit") < names.index(Barrier, names.index("s0exit")) < names.index("s1exit")


def test_marking_keeps_the_values_that_stores_reach() -> None:
    compute, leave = scalar(extract(register_level()), 0, 1)
    assert census(compute) == {"L shared s0r0s0": 4, "L shared s0r0s1": 2, "mul": 4, "sum": 4}
    assert census(leave) == {"max": 2, "S global y": 2}


def test_marking_the_block_keeps_a_threads_nodes() -> None:
    whole, part = scalar(register_level(), 0, None)[0], scalar(extract(register_level()), 0, 1)[0]
    chosen = [root for root in whole.roots if isinstance(root, Accumulate) and root.at[2] == Index(1)]
    loads = {node for node in mark(whole.roots, chosen) if isinstance(node, Load)}
    assert loads == {node for node in post_order(part.roots) if isinstance(node, Load)}
