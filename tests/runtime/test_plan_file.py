"""Folder form of a plan.

It comes back whole, and any damage is one clear error.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.ir.compiled import Step, Storage
from cuts.ir.errors import PlanError
from cuts.ir.graph import IndexCheck
from cuts.ir.text import print_graph
from cuts.ir.types import DType, TensorType
from cuts.runtime.files.plan_document import PlanDocument, parse_document, plain, write_document
from cuts.runtime.files.plan_file import load_plan, plan_of_files, read_files
from cuts.runtime.files.plan_writer import plan_content, plan_files, save_plan, write_folder
from cuts.runtime.files.weights import Weights
from cuts.runtime.memory import Placement
from cuts.runtime.plan import check_plan
from cuts.tests.runtime.handmade import example_plan
from hypothesis import given, settings
from hypothesis import strategies as st

NASTY = 'x;}__global__ void */ \\\n#include "/etc/passwd" \u202e é'


@pytest.mark.parametrize("dialect", ["opencl", "cuda"])
def test_plan_round_trips(tmp_path: Path, dialect: str) -> None:
    plan = evolve(example_plan(dialect), binaries=(b"\x7fELF", None))
    save_plan(plan, tmp_path / "p")
    again = load_plan(tmp_path / "p")
    assert again == plan
    assert {k: v.tolist() for k, v in again.constants.items()} == {k: v.tolist() for k, v in plan.constants.items()}
    assert again.model is not None
    assert plan.model is not None
    assert print_graph(again.model.graph) == print_graph(plan.model.graph)
    assert again.model.specs == {"my.cuts": "op mine"}
    assert again.model.interface is again.model.interface, "runs ask for it"


def test_address_tables_of_earlier_plans_become_constants(tmp_path: Path) -> None:
    plan = example_plan()
    files = plan_files(plan)
    data = json.loads(files["plan.json"])
    first, second = data["kernels"]
    for kernel in (first, second):
        kernel |= {"tables": {}, "places": {}}
        kernel["arguments"] = [argument | {"table": False} for argument in kernel["arguments"]]
    key = data["constants"]["w"]
    first["arguments"].append({"tensor": "t", "dtype": "i32", "written": False, "table": True, "map": None})
    first |= {"tables": {"t": key}, "places": {"t": {"offset": data["arena"], "nbytes": 128}}}
    data["arena"] += 256
    data["steps"][0]["tensors"].append("t")
    del data["format"], data["version"], data["digest"]
    digest = hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    head = {"format": "cuts-plan", "version": 2, "digest": digest}
    document = parse_document(json.dumps(head | data).encode(), tmp_path)
    assert isinstance(document, PlanDocument)
    assert document.constants == {"w": key, "t of kernel 0": key}
    assert document.types["t of kernel 0"] == TensorType(DType.I32, (32,))
    assert [step.tensors for step in document.steps] == [
        ("x", "w", "h", "t of kernel 0"),
        ("h", "left"),
        ("x", "right"),
    ]
    assert document.steps[1:] == plan.steps[1:]


def test_weights_of_equal_bytes_keep_shapes_and_types() -> None:
    weights = Weights({})
    arrays = [np.zeros(shape, kind) for shape, kind in (((4,), np.int32), ((2, 2), np.int32), ((4,), np.float32))]
    keys = [weights.add(array) for array in arrays]
    assert len(set(keys)) == 3
    assert weights.add(arrays[0].copy()) == keys[0]
    for key, array in zip(keys, arrays, strict=True):
        assert (weights.arrays[key].shape, weights.arrays[key].dtype) == (array.shape, array.dtype)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_reordered_weights_are_stored_once(kind: type) -> None:
    given = np.random.default_rng(0).standard_normal((32, 8, 16)).astype(kind)
    given[1, 2, 3] = np.nan
    weights = Weights({})
    key = weights.add(given.transpose(2, 0, 1))
    found, order = weights.add_reordered(given)
    assert (found, len(weights.arrays)) == (key, 1)
    assert weights.arrays[key].transpose(order).tobytes() == given.tobytes()
    assert weights.add_reordered(weights.arrays[key].copy()) == (key, ())
    other = given.copy()
    other[3, 2, 1] = 0.5  # its corners are the same
    assert weights.add_reordered(other) == (list(weights.arrays)[-1], ())
    assert len(weights.arrays) == 2


def test_plan_stores_transposed_weights_once() -> None:
    plan, given = example_plan(), np.random.default_rng(1).standard_normal((64, 32)).astype(np.float32)
    assert plan.model is not None
    kind, packed = TensorType(DType.F32, (64, 32)), TensorType(DType.F32, (32, 64))
    graph = evolve(plan.model.graph, constants={"w": given}, types={**plan.model.graph.types, "w": kind})
    whole = evolve(
        plan,
        types={**plan.types, "packed": packed},
        storages={**plan.storages, "packed": Storage("packed", 0, packed.strides)},
        buffers={**plan.buffers, "packed": Placement(plan.arena, given.nbytes)},
        arena=plan.arena + given.nbytes,
        constants={**plan.constants, "packed": np.ascontiguousarray(given.T)},
        model=evolve(plan.model, graph=graph),
    )
    files, document = plan_content(whole)
    assert len(files["weights.safetensors"]) < 1.5 * given.nbytes
    assert document.model is not None and document.model.orders == {"w": (1, 0)}
    again = plan_of_files(files | {"plan.json": write_document(document)}, "p")
    assert again.model is not None and again.model.graph.constants["w"].tobytes() == given.tobytes()
    assert again.constants["packed"].tobytes() == given.T.tobytes()


def test_names_full_of_code_round_trip_safely(tmp_path: Path) -> None:
    plan = example_plan(x=NASTY, y="../../etc")
    save_plan(plan, tmp_path / "p")
    assert load_plan(tmp_path / "p") == plan
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]
    for kernel in load_plan(tmp_path / "p").kernels:
        assert "include" not in kernel.source
        assert "passwd" not in kernel.source


def test_saving_again_replaces_the_plan(tmp_path: Path) -> None:
    save_plan(evolve(example_plan(), name="old"), tmp_path / "p")
    save_plan(evolve(example_plan(), name="new"), tmp_path / "p")
    assert load_plan(tmp_path / "p").name == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


def test_saving_spares_folders_that_are_no_plan(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "thesis.tex").write_text("years of work")
    with pytest.raises(PlanError, match="no plan"):
        save_plan(example_plan(), tmp_path / "p")
    assert (tmp_path / "p" / "thesis.tex").read_text() == "years of work"


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PlanError, match="No space left"):
        save_plan(example_plan(), tmp_path / "p")
    assert list(tmp_path.iterdir()) == []


def edit(change: Callable[[dict[str, object]], object]) -> Callable[[Path], object]:
    """Return a damage that rewrites plan.json without fixing its digest."""

    def damage(folder: Path) -> None:
        data = json.loads((folder / "plan.json").read_text())
        change(data)
        (folder / "plan.json").write_text(json.dumps(data))

    return damage


def link_weights(folder: Path) -> None:
    """Put the weights outside the plan, through a link."""
    (folder / "weights.safetensors").rename(folder.with_name("w"))
    (folder / "weights.safetensors").symlink_to(folder.with_name("w"))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (lambda p: p.rename(p.with_name("q")), "no plan"),
    "no plan.json": (lambda p: (p / "plan.json").unlink(), "no plan.json"),
    "empty plan.json": (lambda p: (p / "plan.json").write_text(""), "not JSON"),
    "truncated plan.json": (lambda p: (p / "plan.json").write_text((p / "plan.json").read_text()[:900]), "not JSON"),
    "binary plan.json": (lambda p: (p / "plan.json").write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "deep plan.json": (lambda p: (p / "plan.json").write_text("[" * 100_000), "not JSON"),
    "a list": (lambda p: (p / "plan.json").write_text("[1, 2]"), "no plan of cuts"),
    "foreign format": (edit(lambda d: d.update(format="other")), "no plan of cuts"),
    "newer version": (edit(lambda d: d.update(version=99)), "version 99"),
    "changed field": (edit(lambda d: d.update(arena=1)), "digest"),
    "removed field": (edit(lambda d: d.pop("steps")), "digest"),
    "missing source": (lambda p: (p / "kernels" / "0000.cl").unlink(), "missing"),
    "changed source": (lambda p: (p / "kernels" / "0001.cl").write_text("__kernel void k() {}"), "0001.cl is damaged"),
    "missing weights": (lambda p: (p / "weights.safetensors").unlink(), "missing"),
    "truncated weights": (lambda p: (p / "weights.safetensors").write_bytes(b"\x10"), "damaged"),
    "changed model": (lambda p: (p / "model.txt").write_text("graph"), "damaged"),
    "linked weights": (link_weights, "outside the plan"),
}


@pytest.mark.parametrize("name", ["../w", "/w", "kernels/../../w"])
def test_files_outside_of_a_plan_are_not_read(tmp_path: Path, name: str) -> None:
    """A matching digest of the weights does not help."""
    (tmp_path / "w").write_bytes(b"1")
    (tmp_path / "p" / "kernels").mkdir(parents=True)
    with pytest.raises(PlanError, match="outside the plan"):
        read_files(tmp_path / "p", {name: hashlib.sha256(b"1").hexdigest()})


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_one_clear_error(tmp_path: Path, name: str) -> None:
    damage, message = DAMAGES[name]
    save_plan(example_plan(), tmp_path / "p")
    damage(tmp_path / "p")
    with pytest.raises(PlanError, match=message) as caught:
        load_plan(tmp_path / "p")
    assert "\n" not in str(caught.value)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_flipped_bit_is_found_or_harmless(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("flip") / "p"
    plan = example_plan()
    save_plan(plan, folder)
    path = data.draw(st.sampled_from(sorted(p for p in folder.rglob("*") if p.is_file())))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        again = load_plan(folder)
    except PlanError:
        return
    assert again == plan  # a flip between two kinds of white space
    assert all(np.array_equal(again.constants[k], plan.constants[k]) for k in plan.constants)


CONTRADICTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "a step without a kernel": ({"steps": (Step(9, ()),)}, "launches kernel 9 of 2"),
    "too few tensors": ({"steps": (Step(1, ("x",)),)}, "binds 1 tensors, expected 2"),
    "an unknown tensor": ({"steps": (Step(1, ("x", "?")),)}, "binds '\\?' where f32"),
    "a tensor outside its buffer": ({"storages": {"x": Storage("x", 100, (8, 1))}}, "reaches outside"),
    "a negative stride": ({"storages": {"x": Storage("x", 31, (-8, 1))}}, "reaches outside"),
    "a buffer outside the arena": ({"arena": 8}, "outside the arena"),
    "a tensor without a buffer": ({"buffers": {"y": Placement(0, 256)}}, "no place"),
    "a constant of another type": ({"constants": {"w": np.zeros(3)}}, "constant 'w'"),
    "an output without a type": ({"outputs": ("z",)}, "has no type"),
    "other outputs than its model's": (
        {"outputs": ("y",)},
        "its outputs are \\['y'\\], those of its model \\['y', 'left'\\]",
    ),
    "another input than its model's": (
        {"types": {"x": TensorType(DType.F32, (4, 2))}},
        r"'x' is f32\[4, 2\], in its model f32\[4, 8\]",
    ),
    "a check without results": (
        {"checks": (IndexCheck("n", "gather", "ids", "ids", (2,), 5, "x", "y"),)},
        "'x' of a check is f32",
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_plans_that_would_leave_their_memory_are_refused(name: str) -> None:
    changes, message = CONTRADICTIONS[name]
    plan = example_plan()
    if "storages" in changes:
        changes = {"storages": {**plan.storages, **changes["storages"]}}
    if "types" in changes:
        changes = {"types": {**plan.types, **changes["types"]}}
    with pytest.raises(PlanError, match=message):
        check_plan(evolve(plan, **changes))


def test_plain_values_are_json() -> None:
    value = {"a": (1, np.float32(0.5), {3, 1}), 2: float("inf"), "p": Path("x")}
    assert plain(value) == {"a": [1, 0.5, [1, 3]], "2": "inf", "p": "x"}


def test_files_of_a_plan_are_that_plan(tmp_path: Path) -> None:
    plan = example_plan()
    files = plan_files(plan)
    assert plan_of_files(files, "p") == plan
    with pytest.raises(PlanError, match=r"plan\.json is damaged"):
        plan_of_files({**files, "plan.json": files["plan.json"][:-9]}, "p")
    write_folder(tmp_path / "p", plan_files(evolve(plan, name="old")))
    write_folder(tmp_path / "p", files)
    assert load_plan(tmp_path / "p") == plan
    assert sorted(f.name for f in tmp_path.iterdir()) == ["p"]
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanError, match="it exists and is no folder"):
        write_folder(tmp_path / "file", files)
