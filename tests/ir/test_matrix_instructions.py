"""Table of matrix instructions.

Every fragment covers its operand, and the maps are those of the PTX ISA.
"""

from __future__ import annotations

import numpy as np
import pytest
from cuts.ir.affine import Var, index_value
from cuts.ir.functions import FUNCTIONS
from cuts.ir.machine import (
    ACCUMULATOR_THREADS,
    ACCUMULATOR_VECTOR,
    ELEMENT,
    LANE,
    LANES,
    MMA_INSTRUCTIONS,
    SWIZZLES,
    WARPGROUP,
    WARPGROUP_THREAD,
    MatrixFragment,
    MmaInstruction,
    SharedMatrixLayout,
)
from hypothesis import given
from hypothesis import strategies as st

REGISTER_ROWS = {name: atom for name, atom in MMA_INSTRUCTIONS.items() if not atom.reads_shared}
SHARED_ROWS = {name: atom for name, atom in MMA_INSTRUCTIONS.items() if atom.reads_shared}
every_atom = pytest.mark.parametrize("atom", REGISTER_ROWS.values(), ids=REGISTER_ROWS)


def places(fragment: MatrixFragment) -> np.ndarray:
    """Return (row, column) of every element of every lane."""
    lanes, elements = np.meshgrid(np.arange(LANES), np.arange(fragment.size), indexing="ij")
    at = {LANE: lanes, ELEMENT: elements}
    both = [np.broadcast_to(index_value(i, at.__getitem__), lanes.shape) for i in (fragment.row, fragment.column)]
    return np.stack(both, axis=-1)


@every_atom
def test_a_fragment_holds_each_operand_element_once(atom: MmaInstruction) -> None:
    for fragment, shape in ((atom.a, (atom.m, atom.k)), (atom.b, (atom.k, atom.n)), (atom.c, (atom.m, atom.n))):
        held = places(fragment).reshape(-1, 2)
        assert sorted(map(tuple, held)) == sorted(np.ndindex(*shape))


@every_atom
def test_lanes_multiply_what_they_hold_to_the_product(atom: MmaInstruction) -> None:
    """A, B and C agree about the lanes' rows, columns and depths.

    The product of fragments is that of matrices.
    """
    rng = np.random.default_rng(1)
    a, b = rng.integers(-9, 9, (atom.m, atom.k)), rng.integers(-9, 9, (atom.k, atom.n))
    rebuilt = []
    for fragment, whole in ((atom.a, a), (atom.b, b)):
        at = places(fragment)
        again = np.zeros_like(whole)
        again[at[..., 0], at[..., 1]] = whole[at[..., 0], at[..., 1]]
        rebuilt.append(again)
    at = places(atom.c)
    assert ((rebuilt[0] @ rebuilt[1])[at[..., 0], at[..., 1]] == (a @ b)[at[..., 0], at[..., 1]]).all()


@every_atom
def test_accumulators_lie_as_tile_dims_of_threads(atom: MmaInstruction) -> None:
    at = places(atom.c)
    for axis, (threads, vector) in enumerate(zip(ACCUMULATOR_THREADS, ACCUMULATOR_VECTOR, strict=True)):
        lane = np.arange(LANES)[:, None] // (1 if axis else ACCUMULATOR_THREADS[1]) % threads
        position = at[..., axis]
        assert (position // vector % threads == lane).all()


#: PTX ISA: row of A, depth of A, depth of B; lane t, element i.
ISA = {
    "m16n8k4_tf32": (lambda t, i: t // 4 + 8 * i, lambda t, i: t % 4, lambda t, i: t % 4),
    "m16n8k8_tf32": (lambda t, i: t // 4 + 8 * (i % 2), lambda t, i: t % 4 + 4 * (i // 2), lambda t, i: t % 4 + 4 * i),
    "m16n8k8_f16": (lambda t, i: t // 4 + 8 * (i // 2), lambda t, i: 2 * (t % 4) + i % 2, lambda t, i: 2 * (t % 4) + i),
    "m16n8k16_f16": (
        lambda t, i: t // 4 + 8 * (i // 2 % 2),
        lambda t, i: 2 * (t % 4) + i % 2 + 8 * (i // 4),
        lambda t, i: 2 * (t % 4) + i % 2 + 8 * (i // 2),
    ),
    "m16n8k16_i8": (
        lambda t, i: t // 4 + 8 * (i // 4),
        lambda t, i: 4 * (t % 4) + i % 4,
        lambda t, i: 4 * (t % 4) + i,
    ),
    "m16n8k32_i8": (
        lambda t, i: t // 4 + 8 * (i // 4 % 2),
        lambda t, i: 4 * (t % 4) + i % 4 + 16 * (i // 8),
        lambda t, i: 4 * (t % 4) + i % 4 + 16 * (i // 4),
    ),
}
ISA |= {name.replace("i8", "u8"): maps for name, maps in ISA.items() if "i8" in name}
ISA |= {f"m16n8k{k}_{pair}": ISA[f"m16n8k{k}_i8"] for k in (16, 32) for pair in ("u8_i8", "i8_u8")}
ISA |= {f"m16n8k32_{kind}": ISA["m16n8k32_i8"] for kind in ("f8e4m3", "f8e5m2")}


@every_atom
def test_maps_are_those_of_the_instruction_set(atom: MmaInstruction) -> None:
    row, depth_of_a, depth_of_b = ISA[atom.name.replace("bf16", "f16")]
    a, b, c = places(atom.a), places(atom.b), places(atom.c)
    for t in range(LANES):
        for i in range(atom.a.size):
            assert tuple(a[t, i]) == (row(t, i), depth_of_a(t, i))
        for i in range(atom.b.size):
            assert tuple(b[t, i]) == (depth_of_b(t, i), t // 4)
        for i in range(4):
            assert tuple(c[t, i]) == (t // 4 + 8 * (i // 2), 2 * (t % 4) + i % 2)


#: f32 far from the largest and the smallest numbers.
NUMBERS = st.integers(0x08000000, 0x77FFFFFF).map(lambda bits: np.array([bits], np.uint32).view(np.float32))


def of_11_bits(name: str, x: np.ndarray) -> np.ndarray:
    """Return the factor that a matrix instruction uses of this part."""
    return np.asarray(FUNCTIONS["tf32_cut"].numpy(FUNCTIONS[name].numpy(x)))


@given(NUMBERS)
def test_tf32_multiplies_one_of_the_two_nearest_numbers(x: np.ndarray) -> None:
    place = np.exp2(np.frexp(x)[1] - 11.0)
    below = FUNCTIONS["tf32_cut"].numpy(x)
    found = of_11_bits("tf32_near", x)
    assert found in (below, below + place)
    assert abs(found - x.astype(np.float64)) < 0.65 * place
    assert of_11_bits("tf32_near", np.asarray(below)) == below


def test_tf32_rounding_is_unbiased() -> None:
    x = np.random.default_rng(1).standard_normal(1 << 18).astype(np.float32)
    errors = {n: of_11_bits(n, x) / x.astype(np.float64) - 1 for n in ("tf32_near", "tf32", "tf32_cut")}
    spread = {name: np.sqrt(np.square(each).mean()) for name, each in errors.items()}
    assert abs(errors["tf32_near"].mean()) < 0.01 * spread["tf32"]
    assert spread["tf32"] < spread["tf32_near"] < 1.08 * spread["tf32"] < 0.6 * spread["tf32_cut"]


@given(NUMBERS)
def test_two_parts_keep_22_bits(x: np.ndarray) -> None:
    kept = of_11_bits("tf32", x).astype(np.float64) + of_11_bits("tf32_rest", x)
    assert abs(kept - x) <= 2.0**-21 * abs(x.astype(np.float64))


@pytest.mark.parametrize("name", ["tf32_near", "tf32", "tf32_cut"])
def test_operands_keep_what_is_no_finite_number(name: str) -> None:
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32)
    np.testing.assert_array_equal(of_11_bits(name, special), special)


@pytest.mark.parametrize("atom", SHARED_ROWS.values(), ids=SHARED_ROWS)
def test_threads_of_a_warpgroup_hold_each_result_once(atom: MmaInstruction) -> None:
    """The map of C is that of the PTX ISA."""
    threads, elements = np.meshgrid(np.arange(LANES * WARPGROUP), np.arange(atom.c.size), indexing="ij")
    at = {WARPGROUP_THREAD: threads, ELEMENT: elements}
    row, column = (np.broadcast_to(index_value(i, at.__getitem__), threads.shape) for i in (atom.c.row, atom.c.column))
    assert (row == 16 * (threads // 32) + threads % 32 // 4 + 8 * (elements // 2 % 2)).all()
    assert (column == 2 * (threads % 4) + elements % 2).all()
    assert len(set(zip(row.flat, column.flat, strict=True))) == atom.m * atom.n == row.size


@given(st.sampled_from(sorted(SWIZZLES)), st.booleans(), st.sampled_from((64, 128, 192)), st.sampled_from((64, 128)))
def test_shared_matrices_lie_as_descriptors_say(swizzle: int, deep: bool, extent: int, depth: int) -> None:
    """Every element has the canonical place of its k step."""
    layout = SharedMatrixLayout(extent, depth, 2, swizzle, deep)
    assert layout.faults(16) == []
    mn, k = np.meshgrid(np.arange(extent), np.arange(depth), indexing="ij")
    along, deeper = Var("mn", extent), Var("k", depth)
    found = index_value(layout.address(along, deeper), {along: mn, deeper: k}.__getitem__)
    assert sorted(found.flat) == list(range(extent * depth))
    start = found[64 * (mn // 64), 16 * (k // 16)] * 2
    r, c, lead, stride, width = mn % 64, k % 16, layout.leading, layout.stride, layout.width
    if deep:
        place = r // 8 * stride + r % 8 * width + (c * 2 if swizzle else c // 8 * lead + c % 8 * 2)
    elif swizzle:
        place = r * 2 // width * lead + c // 8 * stride + c % 8 * width + r * 2 % width
    else:
        place = r // 8 * stride + c // 8 * lead + c % 8 * 16 + r % 8 * 2
    assert (found * 2 == start + place).all()
