"""Named checks of verifiers.

Each reports violations of its invariant and nothing else: sound texts, and one change in each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from cuts.ir import TensorMap
from cuts.ir.affine import Var
from cuts.ir.dfg import IndexNode, Load, MmaAccumulate, Op, Pack, Store, WideStore, Window
from cuts.ir.errors import CutsError, ErrorList, VerifyError
from cuts.ir.kernel import Kernel, phases
from cuts.ir.text import parse_ir
from cuts.ir.types import DType
from cuts.ir.verify.dfg import CHECKS as GRAPH_CHECKS
from cuts.ir.verify.dfg import (
    check_functions_applied,
    check_instructions_known,
    check_values_bound,
    check_vectors_whole,
    check_windows_addressed,
)
from cuts.ir.verify.kernel import CHECKS as BLOCK_CHECKS
from cuts.ir.verify.kernel import THREAD_CHECKS, check_replaced_elements_read_first, check_tensor_maps
from cuts.ir.verify.program import CHECKS as PROGRAM_CHECKS
from cuts.ir.verify.program import check_reductions_complete, verify_program
from cuts.ir.verify.segment import CHECKS as GROUP_CHECKS
from cuts.tests.operations import DIFFERENTIABLE, FLAT, SCALAR, Use

GOLDEN = Path(__file__).parent / "golden"

PROGRAM = """
var i0 < 3, r1 < 4, i1 < 4

program {
  tensor x: f32[3, 4]
  tensor m: f32[3]
  tensor p: i64[3]
  tensor y: f32[3, 4]
  inputs x
  outputs y
  let m[i0] for (i0) = max over (r1) of x[i0, r1]
  let p[i0] for (i0) = argmax over (r1) of x[i0, r1]
  let y[i0, i1] for (i0, i1) = x[i0, i1 + 1 if 0 <= i1 + 1 < 4 else 0] - m[p[i0]{3}]
}
"""

RECURRENCE = """
var t < 3, n < 4, q < 4

program {
  tensor x: f32[3, 4]
  tensor h: f32[4, 4]
  tensor m: f32[3, 4]
  tensor y: f32[4]
  inputs x
  outputs y
  let h[0, n] for (n) = 0.0
  let m[t, n] for (t, n) step t = sum over (q) of x[t, q] * h[t, n]
  let h[t + 1, n] for (t, n) step t = m[t, n] + h[t, n]
  let y[n] for (n) = h[3, n]
}
"""

GROUP = """
var i0 < 3, r1 < 4, i1 < 4

group {
  tensor x: f32[3, 4]
  tensor s: f32[3]
  tensor y: f32[3, 4]
  tensor m: f32[3]
  tensor a: f32[3]
  inputs x
  outputs y
  shared s
  segment (i0) {
    reduce m = max over (r1) of x[i0, r1]
    reduce a = sum over (r1) of exp(x[i0, r1] - m[i0])
    output s[i0] = m[i0] + a[i0]
  }
  segment (i0, i1) {
    output y[i0, i1] = x[i0, i1] - s[i0]
  }
}
"""

BLOCK = (GOLDEN / "test_kernel_of_the_block-shared.txt").read_text()
THREAD = (GOLDEN / "test_kernel_of_the_thread-shared.txt").read_text()

Checks = Sequence[Callable[[Any], Iterable[VerifyError]]]
#: The changed part of a text, its replacement, and the check that reports it, with some of its words.
Case = tuple[str, str, str, str]


def reports_of(text: str, checks: Checks) -> dict[str, list[str]]:
    """Return each check's report on a text."""
    value = parse_ir(text)
    found = {check.__name__: [error.message for error in check(value)] for check in checks}
    return {name: messages for name, messages in found.items() if messages}


def change_text(text: str, old: str, new: str) -> str:
    assert text.count(old) >= 1, f"{old!r} is not in the text"
    return text.replace(old, new, 1)


PROGRAMS: list[Case] = [
    ("tensor m: f32[3]\n", "", "check_tensors_typed", "tensor 'm' has no type"),
    ("inputs x", "inputs x, m", "check_given_tensors_not_written", "writes what the program is given"),
    (
        "= max over (r1) of x[i0, r1]",
        "= max over (r1) of x[i0, r1] + m[i0]",
        "check_reads_and_writes_disjoint",
        "statement 0 (of 'm') reads what it writes",
    ),
    (
        "= max over (r1) of x[i0, r1]",
        "= max over (r1) of x[p[i0]{3}, r1]",
        "check_tensors_written_before_read",
        "statement 0 (of 'm') reads 'p' before it is written",
    ),
    (
        "x[i0, i1 + 1 if 0 <= i1 + 1 < 4 else 0] -",
        "z[i0, i1] -",
        "check_tensors_written_before_read",
        "reads 'z' that nothing writes",
    ),
    ("tensor y: f32[3, 4]", "tensor y: f32[4, 4]", "check_results_written_once", "12 of the 16 elements of 'y'"),
    ("let y[i0, i1] for", "let y[i0, i1 + 1] for", "check_writes_injective", "i1 + 1 is not proven to be below 4"),
    ("let y[i0, i1] for", "let y[i0, 0] for", "check_writes_injective", "may write an element twice"),
    ("for (i0, i1) =", "for (i0) =", "check_variables_bound", "nothing binds i1"),
    ("tensor m: f32[3]", "tensor m: f64[3]", "check_values_typed", "expected a value of f64, found f32"),
    ("x[i0, i1 + 1 if", "1 + x[i0, i1 + 1 if", "check_values_typed", "add of"),
    ("0 <= i1 + 1 < 4", "0 <= i1 + 1 < 5", "check_reads_in_bounds", "i1 + 1 is not proven to be below 4"),
    ("m[p[i0]{3}]", "m[p[i0 + 1]{3}]", "check_reads_in_bounds", "i0 + 1 is not proven to be below 3"),
    ("m[p[i0]{3}]", "m[p[i0]{3}, 0]", "check_reads_in_bounds", "expected 1 indices, found 2"),
]

RECURRENCES: list[Case] = [
    ("for (t, n) step t = sum", "for (n) step t = sum", "check_steps_are_axes", "step 't' is no axis of 'm'"),
    (
        "for (t, n) step t = m",
        "for (t, n) step q = m",
        "check_steps_are_axes",
        "step 'q' is no axis of 'h'",
    ),
    ("= m[t, n] + h[t, n]", "= m[t, n] + h[t + 1, n]", "check_steps_in_order", "statement 2 (of 'h') reads 'h' before"),
    ("x[t, q] * h[t, n]", "x[t, q] * h[t + 1, n]", "check_steps_in_order", "statement 1 (of 'm') reads 'h' before"),
    ("x[t, q] * h[t, n]", "x[t, q] * h[3, n]", "check_steps_in_order", "statement 1 (of 'm') reads 'h' before"),
    ("let h[t + 1, n]", "let h[t, n]", "check_steps_in_order", "statement 2 (of 'h') reads 'h' before its turn"),
]

GROUPS: list[Case] = [
    ("tensor m: f32[3]\n", "", "check_tensors_typed", "'m' has no type"),
    (
        "exp(x[i0, r1] - m[i0])",
        "exp(x[i0, r1] - a[i0])",
        "check_reads_have_sources",
        "reads 'a', which nothing before it",
    ),
    (
        "= x[i0, i1] - s[i0]",
        "= x[i0, i1] - y[i0, i1]",
        "check_reads_have_sources",
        "reads 'y', which nothing before it",
    ),
    ("output s[i0] = m[i0] + a[i0]", "output s[i0] = m[i0] + s[i0]", "check_reads_have_sources", "reads 's'"),
    (
        "x[i0, i1] - s[i0]",
        "x[s[i0]{3}, i1]",
        "check_reads_have_sources",
        "an index reads 's', which is not in global memory",
    ),
    ("  shared s\n", "", "check_writes_have_places", "'s' is written for no reader"),
    ("inputs x", "inputs x, y", "check_writes_have_places", "'y' is both read and written"),
    ("= m[i0] + a[i0]", "= m[0] + a[i0]", "check_values_read_in_place", "reads 'm' of another instance"),
    ("= x[i0, i1] - s[i0]", "= x[i0, r1] - s[i0]", "check_variables_bound", "nothing binds r1"),
    ("= max over", "= argmax over", "check_combiners_known", "is no reduction"),
    ("tensor s: f32[3]", "tensor s: f64[3]", "check_values_typed", "expected a value of f64, found f32"),
    ("output y[i0, i1]", "output y[i0, 0]", "check_writes_injective", "may write an element twice"),
    ("of x[i0, r1]\n", "of x[i0, r1 + 1]\n", "check_reads_in_bounds", "r1 + 1 is not proven to be below 4"),
]

BLOCKS: list[Case] = [
    ("kernel blocks 8 threads 2", "kernel blocks 0 threads 2", "check_launch_possible", "a launch of 0 blocks"),
    ("writes y", "writes y, x", "check_nothing_read_is_written", "'x' is both read and written"),
    ("reads x, f", "reads x", "check_buffers_declared", "'f' is no global memory"),
    ("store global y", "store global x", "check_buffers_declared", "'x' is no global memory"),
    ("buffer m1: f32[4]\n", "", "check_buffers_declared", "'m1' is no shared memory"),
    ("load global x[8*b2", "load global x[q[b2]{9} + 8*b2", "check_buffers_declared", "an index reads 'q'"),
    ("dtype f: f32", "dtype f: f64", "check_accesses_typed", "'f' holds f64, accessed as f32"),
    ("define b1 = (blk // 4)", "define b1 = (s0j3 // 4)", "check_variables_bound", ""),
    ("phase exit s1exit unroll s1j3", "phase exit s1exit", "check_variables_bound", "nothing binds s1j3"),
    (
        "initialise acc",
        "initialise other",
        "check_registers_initialised",
        "registers of 'acc' are used before they are set",
    ),
    (
        "phase exit s1exit unroll s1j3",
        "phase compute e {\n    keep e0[0] of (1): f32 = 1.0\n  }\n"
        "  phase compute f {\n    keep e0[0] of (1): f32 = 2.0\n  }\n"
        "  phase exit s1exit unroll s1j3",
        "check_registers_read",
        "the registers of 'e0' are set again before anything reads what phase 'e' kept there",
    ),
    (
        "accumulate acc[0, 0, s0u2, s0u3]: f32",
        "accumulate acc[0, 0, s0u2, s0u3]: f64",
        "check_graphs",
        "f32 goes where f64",
    ),
]

THREADS: list[Case] = [
    (
        "held acc[0, 0, 0, s0j3]",
        "held acc[0, 0, 0, s0j3 + 1]",
        "check_threads_alone",
        "register s0j3 + 1 of 'acc', which has 2",
    ),
    (
        "phase exit s1exit unroll s1j3 {\n",
        "phase exit s1exit unroll s1j3 {\n    share s0j3 = s1j3 register 0\n",
        "check_threads_alone",
        "still divides s0j3",
    ),
]

#: Breaches of one data-flow graph, in the words of its checks.
GRAPHS: list[Case] = [
    ("%1: f32 = max(%0, 0.0)", "%1: f64 = max(%0, 0.0)", "check_operands_typed", "max of f32, f32 is a value of f64"),
    ("m1[s0j3 + 2*s0t2]: f32 = %0", "m1[s0j3 + 2*s0t2]: f64 = %0", "check_effects_typed", "f32 goes where f64 is held"),
    ("= sum of %2", "= argmax of %2", "check_combiners_known", "'argmax' combines nothing"),
]

ALL = [
    *((PROGRAM, PROGRAM_CHECKS, *case) for case in PROGRAMS),
    *((RECURRENCE, PROGRAM_CHECKS, *case) for case in RECURRENCES),
    *((GROUP, GROUP_CHECKS, *case) for case in GROUPS),
    *((BLOCK, BLOCK_CHECKS, *case) for case in BLOCKS),
    *((THREAD, THREAD_CHECKS, *case) for case in THREADS),
]


@pytest.mark.parametrize(
    ("text", "checks"),
    [
        (PROGRAM, PROGRAM_CHECKS),
        (RECURRENCE, PROGRAM_CHECKS),
        (GROUP, GROUP_CHECKS),
        (BLOCK, BLOCK_CHECKS),
        (THREAD, THREAD_CHECKS),
    ],
    ids=["program", "recurrence", "group", "block", "thread"],
)
def test_a_sound_text_breaks_nothing(text: str, checks: Checks) -> None:
    assert reports_of(text, checks) == {}


@pytest.mark.parametrize(("text", "checks", "old", "new", "check", "words"), ALL)
def test_a_violation_is_reported_by_its_check(
    text: str, checks: Checks, old: str, new: str, check: str, words: str
) -> None:
    found = reports_of(change_text(text, old, new), checks)
    assert any(words in message for message in found.get(check, ())), found


@pytest.mark.parametrize(("old", "new", "check", "words"), GRAPHS)
def test_a_violation_of_a_graph_names_its_phase(old: str, new: str, check: str, words: str) -> None:
    found = reports_of(change_text(THREAD, old, new), THREAD_CHECKS)
    assert any("phase '" in message and words in message for message in found["check_graphs"]), found
    (reporting,) = (c for c in GRAPH_CHECKS if c.__name__ == check)
    assert any(list(reporting(phase.roots)) for phase in phases(parse_ir(change_text(THREAD, old, new)).items))


def test_every_check_states_its_invariant_and_is_tried() -> None:
    tried = {case[4] for case in ALL} | {case[2] for case in GRAPHS}
    every: list[Checks] = [PROGRAM_CHECKS, GROUP_CHECKS, THREAD_CHECKS, GRAPH_CHECKS]
    rare = {  # made by hand below
        "check_windows_addressed",
        "check_vectors_whole",
        "check_values_bound",
        "check_functions_applied",
        "check_reductions_complete",
        "check_instructions_known",
        "check_tensor_maps",
        "check_bulk_fetches",  # by the tests of bulk copies
        "check_producers",
        "check_clusters",  # by the tests of clusters
        "check_turns",  # by the tests of turns
        "check_replaced_elements_read_first",
    }
    for check in (c for checks in every for c in checks):
        assert check.__name__.startswith("check_")
        assert (check.__doc__ or "").strip()
        assert check.__name__ in tried | rare, check.__name__


def test_what_no_text_of_ours_shows() -> None:
    axis, lane = Var("w", 3), Var("lane", 2)
    load = Load("global", "x", axis + 0, DType.F32)
    value = Window(load, (axis,), (lane + 2,))
    store = WideStore("global", "y", lane * 3, (value, value), DType.F32)
    assert list(check_windows_addressed([store])) == ["a window over w of 3 is read at lane + 2"]
    assert list(check_vectors_whole([store])) == ["2 elements are stored at 3*lane"]
    aside = Store("nowhere", "y", lane + 0, IndexNode(lane + 0, DType.BOOL), DType.BOOL)
    twice = Store("global", "y", lane + 0, Op("exp", (load, load), DType.F32), DType.F32)
    assert list(check_functions_applied([twice])) == ["exp of 2 operands is no function"]
    program = parse_ir(PROGRAM)
    loose = evolve(program, statements=(evolve(program.statements[0], combine=None),))
    assert [e.message for e in check_reductions_complete(loose)] == [
        "statement 0 (of 'm'): 1 reduced axes, combiner None"
    ]
    assert list(check_values_bound([aside])) == ["index lane as a bool", "'nowhere' is no memory"]
    pair = Pack(evolve(load, dtype=DType.F32), lane)
    sound = MmaAccumulate("t", (lane + 0,), "m16n8k8_tf32", load, load, (), DType.F32)
    assert list(check_instructions_known([sound])) == []
    assert list(check_instructions_known([evolve(sound, mma="m1n1k1")])) == ["'m1n1k1' multiplies nothing"]
    assert list(check_instructions_known([evolve(sound, a=pair, b=aside.value, dtype=DType.F64)])) == [
        "a register of m16n8k8_tf32 holds 1 elements, not 2",
        "m16n8k8_tf32 multiplies f32, not bool",
        "m16n8k8_tf32 adds up in f32, not in f64",
    ]


def test_all_breaches_are_reported_at_once() -> None:
    broken = change_text(change_text(PROGRAM, "inputs x", "inputs x, m"), "0 <= i1 + 1 < 4", "0 <= i1 + 1 < 5")
    with pytest.raises(CutsError) as caught:
        verify_program(parse_ir(broken))
    assert isinstance(caught.value, ErrorList)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("use", [*DIFFERENTIABLE, *SCALAR, *FLAT], ids=lambda use: use.op)
def test_every_declaration_means_a_sound_program(use: Use) -> None:
    verify_program(use.instance.program)


def test_tensor_maps_are_of_read_tensors() -> None:
    kernel = parse_ir(BLOCK)
    made = TensorMap("map", "absent", DType.F16, (64, 64), (128,), (64, 64), 128)
    found = [str(fault) for fault in check_tensor_maps(evolve(kernel, maps=(made, made)))]
    assert "two tensor maps have one name" in found[0]
    assert any("no tensor 'absent' is read so" in fault for fault in found)


UPDATE = """\
var tid < 32

kernel blocks 1 threads 32 {
  reads x
  writes y, z
  dtype x: f32
  dtype y: f32
  dtype z: f32
  aligned x: 16
  aligned y: 16
  aligned z: 16
  phase exit p {
    %0: f32 = load global x[tid]
    %1: f32 = load global y[tid]
    store global FIRST[tid]: f32 = OLD
    store global SECOND[tid]: f32 = NEW
  }
}
"""


@pytest.mark.parametrize(("first", "faults"), [("z", 0), ("y", 1)])
def test_replaced_elements_are_read_before_their_store(first: str, faults: int) -> None:
    """An element of y moves to z and is replaced."""
    second, values = {"z": ("y", ("%1", "%0")), "y": ("z", ("%0", "%1"))}[first]
    text = UPDATE.replace("FIRST", first).replace("SECOND", second)
    kernel = parse_ir(text.replace("OLD", values[0]).replace("NEW", values[1]))
    assert isinstance(kernel, Kernel) and len(list(check_replaced_elements_read_first(kernel))) == faults
