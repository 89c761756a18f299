"""Round trips of text forms: print -> parse -> print.

They hold for index IR, schedules, kernels and data-flow graphs, and the node comes back equal.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from cuts.backends.devices import find_target
from cuts.compile.driver import compile_model
from cuts.compile.loading import load_model, load_spec
from cuts.ir.affine import Guard, Index, Var, as_index
from cuts.ir.compiled import CompileOptions, Storage
from cuts.ir.dfg import Convert, IndexNode, Literal, Load, Op, Store, Value
from cuts.ir.dfg import Test as InRangeTest
from cuts.ir.errors import ParseError
from cuts.ir.expr import Expr, Read
from cuts.ir.kernel import Phase, phases
from cuts.ir.statement import Statement
from cuts.ir.text import (
    FORMS,
    Lines,
    Maybe,
    Part,
    Word,
    field_types,
    members,
    parse_ir,
    print_ir,
    renew_keywords,
    use_former_keywords,
)
from cuts.ir.text.tokens import DROPPED_KEYWORDS, FORMER_KEYWORDS
from cuts.ir.types import DType, TensorType
from cuts.passes.lowering.extract import extract
from cuts.passes.lowering.lower import lower
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ..kernels.cases import chains, pairs, points
from .strategies import all_indices, exprs, guards

GPU = find_target("cuda:sm_90")
P, Q = Var("p", 4), Var("q", 7)


def returns(node: object) -> None:
    """Assert that a node comes back from its text."""
    text = print_ir(node)
    parsed = parse_ir(text)
    assert print_ir(parsed) == text
    assert parsed == node


@given(exprs, st.lists(all_indices, max_size=3).map(tuple))
def test_statements_come_back(body: Expr, write: tuple[Index, ...]) -> None:
    returns(Statement("y", (P, Q), write, body))
    returns(Statement("the result", (P,), write, body, (Q, Var("p", 5)), "sum"))


@given(all_indices, st.lists(guards, max_size=3).map(tuple), st.sampled_from((0.0, -1.5, float("-inf"))))
def test_graphs_come_back(address: Index, conditions: tuple[Guard, ...], fill: float) -> None:
    load = Load("global", "x", address, DType.F16, conditions, fill)
    wide = Convert(load, DType.F32)
    place = IndexNode(address, DType.I32)
    chosen = Op(
        "select", (InRangeTest(conditions), Op("mul", (wide, wide), DType.F32), Literal(-0.5, DType.F32)), DType.F32
    )
    roots = (
        Store("shared", "s 0", address, chosen, DType.F32, conditions),
        Store("global", "i", address, place, DType.I32),
        Store("global", "i", address, place, DType.I32, conditions, "append", size=64),
    )
    returns(Phase("compute", "both", roots, (P, Q), (), conditions, True))
    returns(roots[0])


@settings(max_examples=40)
@given(st.data())
def test_groups_schedules_and_kernels_come_back(data: st.DataObject) -> None:
    group = data.draw(st.one_of(chains(), pairs()))
    schedule = data.draw(points(group, GPU))
    assume(schedule is not None)
    kernel = lower(group, schedule, {}, GPU)
    for node in (group, schedule, kernel, extract(kernel), *phases(kernel.items)):
        returns(node)


def test_a_program_reads_as_it_is_written() -> None:
    types = {"x": TensorType(DType.F32, (4, 7)), "y/out": TensorType(DType.F32, (4,))}
    text = (
        "var p < 4, q < 7\n\n"
        "program {\n"
        "  tensor x: f32[4, 7]\n"
        '  tensor "y/out": f32[4]\n'
        "  constant half = [0.5]\n"
        "  inputs x\n"
        '  outputs "y/out"\n'
        '  let "y/out"[p] for (p) = sum over (q) of x[p, q - 1 if 0 <= q - 1 < 7 else 1] * -(x[p, q] - 2.0)\n'
        "}\n"
    )
    program = parse_ir(text)
    assert print_ir(program) == text
    assert (program.tensors, program.constants, program.outputs) == (types, {"half": (0.5,)}, ("y/out",))


_TODAY = """var i0 < 64, i1 < 64, r0 < 64

schedule {
  spread reduction_threads 2 warp (4, 8) row_cache 64 privatised {
    tile (i0) block 32 thread 2 tiles 2
    tile (i1) block 32 thread 4 vector 4
    k_loop stages 2 mma m16n8k8_tf32 columns 1 prefetch 1 {
      block_k (r0) by 8
      stage 0 order (1, 0) l1
      stage 1 pad 4 register_staged swizzle 64
    }
  }
}
"""
_BEFORE = """var i0 < 64, i1 < 64, r0 < 64

schedule {
  spread lanes 2 warp (4, 8) zigzag kept 64 meets {
    tile (i0) block 32 thread 2 turns 2
    tile (i1) block 32 thread 4 vector 4
    chunks stages 2 atom m16n8k8_tf32 columns 1 ahead 1 {
      chunk (r0) by 8
      stage 0 order (1, 0) cached
      stage 1 pad 4 carried swizzle 64
    }
  }
}
"""


def test_schedules_of_former_spelling_are_parsed() -> None:
    schedule = parse_ir(_TODAY)
    assert parse_ir(_BEFORE) == schedule
    assert print_ir(schedule) == _TODAY == renew_keywords(_BEFORE) == renew_keywords(_TODAY)
    assert use_former_keywords(_TODAY) == _BEFORE
    assert all(re.search(rf"\b{former}\b", _BEFORE) for former in (*FORMER_KEYWORDS, *DROPPED_KEYWORDS))


def test_comments_are_skipped() -> None:
    assert parse_ir("# the arena\nstorage arena offset 0 strides (1) # dense\n") == Storage("arena", 0, (1,))


def test_a_storage_comes_back() -> None:
    returns(Storage("arena 0", 12, (4, 0, 1)))


def test_shared_nodes_are_printed_once() -> None:
    value = Load("global", "x", as_index(P), DType.F32)
    for _ in range(200):
        value = Op("add", (value, value), DType.F32)
    assert print_ir(Store("global", "y", as_index(P), value, DType.F32)).count("\n") == 2 + 201 + 1


def test_variables_of_two_ranges_stay_distinct() -> None:
    other = Var("p", 9)
    statement = Statement("y", (P, other), (P + other * 4,), Read("x", (as_index(P), as_index(other))))
    assert "let y[p + 4*p'9] for (p, p'9) = x[p, p'9]" in print_ir(statement)
    returns(statement)


def test_hand_written_sums_become_canonical() -> None:
    parsed = parse_ir("var p < 4, q < 7\nlet y[q + p - 0 + 2*(q + 1)] for (p, q) = 1.0\n")
    assert parsed.write == (P + Q * 3 + 2,)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("", 1, 1, "expected "),
        ("kernel blocks 1 threads", 1, 24, "expected an integer, found the end of the text"),
        ("kernel blocks 1.5 threads 1 {}", 1, 15, "expected an integer, found '1.5'"),
        ("barrier barrier", 1, 9, "expected the end of the text, found 'barrier'"),
        ("var p < 4\nlet y[p] for (p) = x[r]", 2, 22, "unknown variable 'r'"),
        ("var p < 4, p < 5", 1, 12, "variable 'p' is declared twice"),
        ("var p < 4\nlet y[p] for (p) = sqrt(1.0, 2.0)", 2, 20, "'sqrt' takes 1 operands, found 2"),
        ("var p < 4\nlet y[p] for (p) = 1.0 $", 2, 24, "unexpected character"),
        ("var p < 4\nlet y[(p // 0)] for (p) = 1.0", 2, 13, "expected a divisor above 0, found 0"),
        ("%0: f32 = 1.0 + %1\nstore global y[0]: f32 = %0", 1, 17, "value %1 is not defined above"),
        ("%0: f32 = max(1.0, 2.0) + 1.0\nstore global y[0]: f32 = %0", 1, 1, "a value is one operation"),
        ("%0: f32 = window 1.0 over () at ()", 1, 18, "expected a load, found another value"),
        ("program {\n  tensor x: f32[2]\n  tensor x: f32[3]\n}", 3, 3, "'x' stands twice in 'tensors'"),
        ("program {\n  tensor x: real[2]\n}", 2, 13, "expected an element type, found 'real'"),
    ],
)
def test_errors_say_where(text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_ir(text, "ir.txt")
    assert message in caught.value.message
    assert caught.value.span is not None
    assert caught.value.span.position == f"ir.txt:{line}:{column}"


def test_keywords_identify_classes() -> None:
    keywords = [form.keyword for form in FORMS.values()]
    assert len(set(keywords)) == len(keywords)


@pytest.mark.parametrize("example", ["distance", "rms", "shift"])
def test_what_the_passes_print_comes_back(example: str) -> None:
    folder = Path(__file__).parents[2] / "examples"
    spec = load_spec([folder / f"{example}.cuts"])
    texts: dict[str, str] = {}
    options = CompileOptions(print_after=("all",), callback=texts.__setitem__)
    compile_model(load_model(folder / f"{example}.json", spec), spec, find_target("cuda:sm_90"), options)
    for name in ("programs", "views", "partition", "schedule", "lower", "extract"):
        for part in re.split(r"^(?:# .*|kernel \d+:)\n", texts[name], flags=re.MULTILINE):
            if part.strip():
                assert print_ir(parse_ir(part)).strip() == part.strip()


def test_forms_contain_every_field() -> None:
    for cls, form in FORMS.items():
        shown = set(slots(form.head) + slots(form.body))
        missing = set(field_types(cls)) - shown
        assert missing == ({"dtype"} & set(field_types(cls)) if issubclass(cls, members(Value)) else set()), cls


def slots(parts: Sequence[Part | Lines]) -> list[str]:
    """Return the fields that parts of a form show."""
    inner = [slots(p.parts) if isinstance(p, Maybe) else [p.name] for p in parts if not isinstance(p, Word)]
    return [name for names in inner for name in names]
