"""The normal form of a dozen groups, whole."""

from __future__ import annotations

from textwrap import dedent

import pytest
from cuts.ir.affine import Indirect, Var, as_index, indirects
from cuts.ir.expr import Call, Cast, Read
from cuts.ir.graph import Graph
from cuts.ir.statement import Statement
from cuts.ir.traversal import distinct, walk
from cuts.ir.types import DType, TensorType
from cuts.passes.statements import inline

from .build import fuse_units, graph, op, text

X = {"x": (1, 4, 6, 6)}

FORMS: dict[str, tuple[Graph, str]] = {
    "a chain whose value is used twice, with a broadcast operand": (
        graph({"x": (2, 3), "b": (3,)}, op("a", "add", "x", "b"), op("s", "sigmoid", "a"), op("y", "mul", "a", "s"),
              out="y"),
        """
        segment (i0, i1) {
          output y[i0, i1] = (x[i0, i1] + b[i1]) * (1.0 / (1.0 + exp(-(x[i0, i1] + b[i1]))))
        }
        """,
    ),
    "two outputs, the second transposed": (
        graph({"x": (2, 3), "z": (3, 2)}, op("a", "relu", "x"), op("t", "transpose", "a"), op("y", "mul", "t", "z"),
              out="a y"),
        """
        segment (i0, i1) {
          output a[i0, i1] = max(x[i0, i1], 0.0)
          output y[i1, i0] = max(x[i0, i1], 0.0) * z[i1, i0]
        }
        """,
    ),
    "an epilogue: bias, residual and relu": (
        graph({**X, "w": (5, 4, 1, 1), "b": (5,), "r": (1, 5, 6, 6)}, op("c", "conv", "x", "w", "b"),
              op("s", "add", "c", "r"),
              op("y", "relu", "s"), out="y"),
        """
        segment (i0, i1, i2) {
          reduce acc0 = sum over (r0) of w[i0, r0, 0, 0] * x[0, r0, i1, i2]
          output y[0, i0, i1, i2] = max(acc0[i0, i1, i2] + b[i0] + r[0, i0, i1, i2], 0.0)
        }
        """,
    ),
    "what holds is counted in f32, which has all integers up to the number of terms": (
        graph({"x": (5, 6), "z": (5, 6)}, op("g", "greater", "x", "z"), op("c", "cast", "g", to="i64"),
              op("y", "reduce_sum", "c", axes=(1,), keepdims=False), out="y"),
        """
        segment (i0) {
          reduce acc0 = sum over (r0) of f32(x[i0, r0] > z[i0, r0])
          output y[i0] = i64(acc0[i0])
        }
        """,
    ),
    "a prologue under zero padding needs no select": (
        graph({"x": (1, 4, 6), "w": (5, 4, 3)}, op("a", "relu", "x"), op("y", "conv", "a", "w", pads=(1, 1)), out="y"),
    """
    segment (i0, i1) {
      reduce acc0 = sum over (r0, r1) of w[i0, r0, r1] * max(x[0, r0, i1 + r1 - 1 if 0 <= i1 + r1 - 1 < 6 else 0], 0.0)
      output y[0, i0, i1] = acc0[i0, i1]
    }
    """,
    ),
    "a padded value with f(0) != 0 needs one": (
        graph({"x": (6,)}, op("a", "exp", "x"), op("p", "pad", "a", pads=(1, 0)), op("y", "neg", "p"), out="y"),
        """
        segment (i0) {
          output y[i0] = -select(inside(0 <= i0 - 1 < 6), exp(x[i0 - 1 if 0 <= i0 - 1 < 6 else 0]), 0.0)
        }
        """,
    ),
    "a grouped convolution keeps its channels split": (
        graph({**X, "w": (6, 2, 1, 1)}, op("c", "conv", "x", "w", groups=2), op("y", "relu", "c"), out="y"),
        """
        segment (i0, i1, i2, i3) {
          reduce acc0 = sum over (r0) of w[3*i0 + i1, r0, 0, 0] * x[0, 2*i0 + r0, i2, i3]
          output y[0, 3*i0 + i1, i2, i3] = max(acc0[i0, i1, i2, i3], 0.0)
        }
        """,
    ),
    "pooling of a computed tensor": (
        graph({"x": (1, 4, 6)}, op("a", "relu", "x"), op("y", "max_pool", "a", kernel_shape=(3,), strides=(2,)),
              out="y"),
        """
        segment (i0, i1) {
          reduce acc0 = max over (r0) of max(x[0, i0, 2*i1 + r0], 0.0)
          output y[0, i0, i1] = acc0[i0, i1]
        }
        """,
    ),
    "softmax shares its row between three passes": (
        graph({"x": (4, 7)}, op("y", "softmax", "x"), out="y"),
        """
        segment (i0) {
          reduce acc0 = max over (r0) of x[i0, r0]
          reduce acc1 = sum over (r0) of exp(x[i0, r0] - acc0[i0])
          output y[i0, r0] for (r0) = exp(x[i0, r0] - acc0[i0]) / acc1[i0]
        }
        """,
    ),
    "layer norm": (
        graph({"x": (4, 7), "g": (7,), "b": (7,)}, op("y", "layer_norm", "x", "g", "b"), out="y"),
        """
        segment (i0) {
          reduce acc0 = sum over (r0) of x[i0, r0]
          reduce acc1 = sum over (r0) of (x[i0, r0] - acc0[i0] / 7.0) * (x[i0, r0] - acc0[i0] / 7.0)
          output y[i0, r0] for (r0) = (x[i0, r0] - acc0[i0] / 7.0) * rsqrt(acc1[i0] / 7.0 + 1e-05) * g[r0] + b[r0]
        }
        """,
    ),
    "global average pooling and what follows": (
        graph(X, op("a", "reduce_mean", "x", axes=(2, 3), keepdims=True), op("y", "relu", "a"), out="y"),
        """
        segment (i0) {
          reduce acc0 = sum over (r0, r1) of x[0, i0, r0, r1]
          output y[0, i0, 0, 0] = max(acc0[i0] / 36.0, 0.0)
        }
        """,
    ),
    "a reduction broadcast back along an inner axis": (
        graph({"x": (3, 4, 5)}, op("m", "reduce_max", "x", axes=(1,), keepdims=True), op("y", "sub", "x", "m"),
              out="y"),
        """
        segment (i0, i1) {
          reduce acc0 = max over (r0) of x[i0, r0, i1]
          output y[i0, r0, i1] for (r0) = x[i0, r0, i1] - acc0[i0, i1]
        }
        """,
    ),
    "an epilogue after a reshape and a transpose": (
        graph({"x": (6, 8), "w": (8, 8)}, op("c", "matmul", "x", "w"), op("h", "reshape", "c", shape=(6, 2, 4)),
              op("t", "transpose", "h", perm=(1, 0, 2)), op("y", "relu", "t"), out="y"),
        """
        segment (i0, i1) {
          reduce acc0 = sum over (r0) of x[i0, r0] * w[r0, i1]
          output y[(i1 // 4), i0, (i1 % 4)] = max(acc0[i0, i1], 0.0)
        }
        """,
    ),
    "argmax as two reductions, places in 32 bits": (
        graph({"x": (4, 7)}, op("y", "argmax", "x", axis=1, keepdims=False), out="y"),
        """
        segment (i0) {
          reduce acc0 = max over (r0) of x[i0, r0]
          reduce acc1 = min over (r0) of select(or(x[i0, r0] == acc0[i0], isnan(x[i0, r0])), index(r0):i32, 6:i32)
          output y[i0] = i64(acc1[i0])
        }
        """,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_normal_form(name: str) -> None:
    made, expected = FORMS[name]
    assert text(fuse_units(made)).partition("\n\n")[2] == dedent(expected).strip()


def test_an_invariant_scale_leaves_the_sum() -> None:
    made = graph(
        {"x": (4, 7), "s": (4, 1)},
        op("m", "mul", "x", "s"),
        op("y", "reduce_sum", "m", axes=(1,), keepdims=False),
        out="y",
    )
    assert "reduce acc0 = sum over (r0) of x[i0, r0]\n" in text(fuse_units(made))


def test_equal_groups_have_equal_forms() -> None:
    made = graph(
        {"x": (2, 3)}, op("a", "relu", "x"), op("b", "exp", "a"), op("c", "relu", "b"), op("y", "exp", "c"), out="y"
    )
    first, second = fuse_units(made, "n0 n1"), fuse_units(made, "n2 n3")
    assert first.form == second.form  # type: ignore[union-attr]


def test_equal_expressions_of_a_form_are_one_object() -> None:
    made = graph(
        {"x": (2, 3)},
        op("a", "exp", "x"),
        op("b", "mul", "a", "a"),
        op("y", "relu", "b"),
        op("z", "neg", "b"),
        out="y z",
    )
    form = fuse_units(made).form  # type: ignore[union-attr]
    found = [each for segment in form.segments for body in segment.expressions for each in walk(body)]
    assert len({id(each) for each in found}) == len(set(found)) < len(found)


def test_a_chain_is_inlined_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    substitute = inline.substitute_expr
    monkeypatch.setattr(
        inline,
        "substitute_expr",
        lambda body, values: [moved.append(len([*distinct(body)])), substitute(body, values)][1],
    )
    inliner = inline.Inliner({f"t{n}": TensorType(DType.F32, (8,)) for n in range(13)}, frozenset())
    for number in range(12):
        own = Var(f"i{number}", 8)
        body = Call("mul", (Read(f"t{number}", (as_index(own),)), Read(f"t{number}", (as_index(own),))))
        inliner.define(Statement(f"t{number + 1}", (own,), (as_index(own),), body))
    inlined = inliner.inline(Read("t12", (as_index(Var("i", 8)),)))  # the tree has 2 ** 12 leaves
    assert len([*distinct(inlined)]) < 40
    assert sum(moved) == 12 * 3


def test_certainly_large_trees_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Var("i", 8)
    inliner = inline.Inliner({f"t{n}": TensorType(DType.F32, (8,)) for n in range(65)}, frozenset())
    for number in range(64):
        parts = tuple(Read(f"t{number}", (as_index(own) + shift,)) for shift in range(2))
        inliner.define(Statement(f"t{number + 1}", (own,), (as_index(own),), Call("mul", parts)))
    monkeypatch.setattr(inline, "rebuild", None)
    with pytest.raises(inline.FusionError):
        inliner.inline(Read("t64", (as_index(own),)))


def test_readers_of_earlier_pieces_see_no_later_ones() -> None:
    axis = Var("i", 2)
    inliner = inline.Inliner({n: TensorType(DType.F32, (2,)) for n in "xpy"}, frozenset())
    for place, source in enumerate(("x", "y")):
        if source == "y":
            inliner.define(Statement("y", (axis,), (as_index(axis),), Call("neg", (Read("p", (as_index(0),)),))))
        inliner.define(Statement("p", (), (as_index(place),), Read(source, (as_index(0),))))
    assert inliner.inline(Read("p", (as_index(1),))) == Call("neg", (Read("x", (as_index(0),)),))


@pytest.mark.parametrize("copy", DType, ids=str)
@pytest.mark.parametrize("row", DType, ids=str)
def test_places_are_copies_that_keep_every_integer(row: DType, copy: DType) -> None:
    own, limits, wide = Var("i", 8), row.element, copy.element
    types = {"row": TensorType(row, (8,)), "copy": TensorType(copy, (8,))}
    inliner = inline.Inliner(types, frozenset(types), {"row"})
    inliner.define(Statement("copy", (own,), (as_index(own),), Cast(copy, Read("row", (as_index(own),)))))
    place = Indirect("copy", (), 60).with_parts((as_index(own),))
    if row.is_int and copy.is_int and wide.lowest <= limits.lowest and limits.highest <= wide.highest:
        assert [each.tensor for each in indirects(inliner.inline_index(place))] == ["row"]
    else:
        with pytest.raises(inline.FusionError, match="used as an index"):
            inliner.inline_index(place)
