"""Execution of plans with offloading, memory limits and failures.

The numbers are equal for every residence, under a cap, and after every kind of accident.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.cluster import storage_rate
from cuts.cluster.kernels import Kernels, compile_kernels
from cuts.cluster.measure import predict
from cuts.cluster.plans import Machine, Transformer
from cuts.cluster.plans.plan_file import ClusterPlan, save_cluster_plan
from cuts.cluster.plans.ways import Way, columns
from cuts.cluster.prediction.feasibility import fit
from cuts.cluster.running import Runner
from cuts.cluster.storage import mapped_files
from cuts.cluster.storage.mover import Move, Mover
from cuts.cluster.storage.store import open_store
from cuts.ir.errors import BackendError, CutsError, PlanError, UsageError
from cuts.tests.amounts import NIGHTLY
from cuts.tests.needs import opencl_reason
from safetensors.numpy import load_file

from .kernel_files import write_kernels

pytestmark = [
    pytest.mark.as_users_build,
    pytest.mark.long,
    pytest.mark.opencl,
    pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason() or "it is here"),
]

MODEL = Transformer("tiny", layers=4, hidden=64, heads=4, sequence=16, batch=8, precision="single")
GATED_MODEL = evolve(MODEL, name="gated", layers=2, hidden=128, kv_heads=2, inner=192, gated=True, biases=False)
#: Sizes that no vector divides.
ODD = evolve(GATED_MODEL, name="odd", hidden=30, heads=3, kv_heads=1, inner=25, sequence=7, biases=True)
HERE = Machine("here", 1, 1, 1e10, 1.0, 1e9, 1e9, 1e9, 1e9, 1e9)
WHOLE = Way(1, 1, 1, "AR", 2, "weights", "keep")

INFERENCE = [
    Way(1, 1, 1, "AR", 2),
    Way(1, 1, 1, "PR", 2),
    Way(1, 1, 1, "PR", 2, "nothing", "offload"),
    Way(1, 1, 1, "PR", 2, "weights", "keep"),
]
TRAINING = [
    Way(1, 1, 1, "AR", 2, "gradients", "keep"),
    Way(1, 1, 1, "AR", 2, "nothing", "offload"),
    Way(1, 1, 1, "PR", 2, "nothing", "keep"),
    Way(1, 1, 1, "PR", 2, "nothing", "offload"),
    Way(1, 1, 1, "AR", 2, "nothing", "recompute+offload"),
    Way(1, 1, 1, "PR", 2, "nothing", "recompute"),
    Way(1, 1, 1, "PR", 2, "nothing", "recompute+offload"),
]

#: Those of them that are run by themselves; the nights run all.
RUN = TRAINING if NIGHTLY else TRAINING[::3]


@cache
def kernels(model: Transformer, training: bool, recompute: bool) -> Kernels:
    """Compile once for all tests."""
    way = evolve(WHOLE, activations="recompute" if recompute else "keep")
    return compile_kernels(ClusterPlan(model, HERE, way, training), "opencl")


def runner(
    folder: Path, way: Way, *, training: bool, model: Transformer = MODEL, memory: float | None = None
) -> Runner:
    """Return a runner with compiled kernels."""
    compiled = kernels(model, training, training and way.activations.startswith("recompute"))
    return Runner(ClusterPlan(model, HERE, way, training), folder, memory=memory, kernels=compiled, seed=3)


def train_steps(folder: Path, way: Way, steps: int, model: Transformer = MODEL) -> tuple[list[float], list[bytes]]:
    """Train, and return the losses and every layer's file."""
    made = runner(folder, way, training=True, model=model)
    losses = made.train(steps).losses
    made.close()
    return losses, [made.store.path("weights", layer, steps % 2).read_bytes() for layer in range(model.layers)]


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], list[bytes]]:
    """Results of three training steps without an interruption."""
    return train_steps(tmp_path_factory.mktemp("whole"), TRAINING[6], 3)


@pytest.mark.parametrize("way", INFERENCE, ids=lambda w: w.text)
def test_inference_gives_the_bits_of_the_whole_model(way: Way, tmp_path: Path) -> None:
    outcomes = []
    for each in (WHOLE, way):
        made = runner(tmp_path, each, training=False)
        outcomes.append([made.infer(number) for number in (0, 1)])
        made.close()
    for one, other in zip(*outcomes, strict=True):
        assert one.keys() == other.keys() == {0, 1, 2, 3}
        assert all((one[key] == other[key]).all() for key in one)


def watch_batch(
    way: Way, folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str = "weights-0/"
) -> tuple[list[tuple[str, Any]], int]:
    """Run one mini-batch; return its events in order, and a layer's bytes.

    Of transfers, those of files in a folder are events.
    """
    monkeypatch.setattr("cuts.cluster.running.traffic.PIECE_BYTES", 1 << 16)  # a layer is four pieces
    made, events = runner(folder, way, training=kind == "mean-0/"), []
    fetch, launch, wait = Mover.fetch, made.launch, Move.wait
    known: dict[int, str] = {}

    def record_fetch(*given: Any) -> Move:
        move = fetch(*given)
        known[id(move)] = f"{given[1].parent.name}/"
        if kind == known[id(move)]:
            events.append(("fetch", given[3]))
        kept.append(move)
        return move

    def record_wait(move: Move) -> None:
        if kind == known.get(id(move)):
            events.append(("wait", move.host.nbytes))
        wait(move)

    kept: list[Move] = []
    monkeypatch.setattr(Mover, "fetch", record_fetch)
    monkeypatch.setattr(Move, "wait", record_wait)
    monkeypatch.setattr(made, "launch", lambda *given: events.append(("block", 0)) or launch(*given))
    made.train(1) if made.plan.training else made.infer(0)
    made.close()
    assert made.report.storage > 0 and made.report.waiting > 0 and made.report.compute > 0
    return events, made.store.layout("weights", 0).nbytes


@pytest.mark.parametrize("policy", ["PR", "AR"])
def test_storage_does_not_stand_still_between_layers(
    policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, whole = watch_batch(Way(1, 1, 1, policy, 2), tmp_path, monkeypatch)
    assert sum(nbytes for what, nbytes in events if what == "fetch") == whole * (4 if policy == "PR" else 16)
    # A layer is asked for as soon as the last but one is done, before the one between them is waited for.
    blocks = ["block"] * (4 if policy == "PR" else 1)
    assert [what for what, _ in events][: 2 * len(blocks) + 5] == [
        *("fetch", "fetch", "wait"),
        *blocks,
        *("fetch", "wait"),
        *blocks,
    ]


def test_weights_come_in_parts_where_activations_come_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, whole = watch_batch(Way(1, 1, 1, "PR", 2, "nothing", "offload"), tmp_path, monkeypatch)
    assert -(-whole // (1 << 16)) == 4
    # The first part of the layer after the next comes before the next layer is waited for: its last part is that late.
    parts = [nbytes for what, nbytes in events if what == "fetch"]
    assert parts[:6] == [whole, *[1 << 16] * 3, whole - 3 * (1 << 16), 1 << 16]
    what = [name for name, _ in events]
    assert what[:10] == ["fetch", "fetch", "wait", "block", *["fetch", "block"] * 3]
    assert what[10:16] == ["fetch", *["wait"] * 4, "block"]


def test_the_optimiser_prefetches_before_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events, _ = watch_batch(TRAINING[6], tmp_path, monkeypatch, "mean-0/")
    moves = [what for what, _ in events if what != "block"]
    assert moves == ["fetch", *["fetch", "wait"] * (MODEL.layers - 1), "wait"]


@pytest.mark.parametrize("way", RUN, ids=lambda w: w.text)
def test_training_gives_the_bits_of_the_whole_model(way: Way, tmp_path: Path) -> None:
    whole = evolve(WHOLE, activations="recompute" if way.activations.startswith("recompute") else "keep")
    assert train_steps(tmp_path / "a", way, 3) == train_steps(tmp_path / "b", whole, 3)


def in_float64(made: Runner, steps: int) -> tuple[list[float], list[dict[str, np.ndarray]]]:
    """Return PyTorch's losses of some steps and gradients of the last."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent))
    from torch_model import loss_of, parameters

    model = made.model
    layers, losses = parameters(model, 3), []
    leaves = {id(p): p for layer in layers for p in layer.values()}
    optimiser = torch.optim.Adam(leaves.values(), lr=1e-3)
    for step in range(steps):
        batch = [made.batches(step, 0, micro) for micro in range(made.micros)]
        kind = torch.int64 if model.vocabulary else torch.float64
        x, target = (torch.tensor(np.concatenate(part), dtype=kind) for part in zip(*batch, strict=True))
        loss = loss_of(model, layers, x, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    return losses, [{name: each.grad.numpy() for name, each in layer.items()} for layer in layers]


#: Models with an embedding and a head: GPT's with a tied head, LLaMA's, BERT's, and one of mixed choices.
GPT = evolve(MODEL, name="gpt", layers=2, vocabulary=50)
LLAMA = evolve(GATED_MODEL, name="llama", vocabulary=70, theta=5e5, epsilon=1e-6)
BERT = evolve(GPT, name="bert", post_norm=True, causal=False)
OTHER = evolve(
    GPT, name="other", kv_heads=2, head_width=24, norm="rms", positions="rotary", activation="gelu_tanh", biases=False,
    attention_biases=True, tied=False,
)  # fmt: skip


@pytest.mark.parametrize("model", [MODEL, GATED_MODEL, ODD, GPT, LLAMA, BERT, OTHER], ids=lambda m: m.name)
def test_training_agrees_with_pytorch(model: Transformer, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    made = runner(tmp_path, Way(1, 1, 1, "PR", 2, "nothing", "recompute+offload"), training=True, model=model)
    losses, expected = in_float64(made, 3)
    assert made.train(3).losses == pytest.approx(losses, rel=1e-5)
    made.close()
    for layer, gradients in enumerate(expected):
        found = load_file(made.store.path("gradients", layer))
        for name, wanted in gradients.items():
            # The rounding of fp32 over a few hundred terms; a key's bias has no gradient but rounding.
            assert np.abs(found[name] - wanted).max() <= 1e-4 * max(np.abs(wanted).max(), 1e-3), (layer, name)


MIXED_MODEL = evolve(MODEL, name="mixed", precision="mixed", layers=2)


def test_mixed_precision_is_exact_with_fp32_parameters(tmp_path: Path) -> None:
    way, whole = TRAINING[6], evolve(WHOLE, activations="recompute")
    losses, files = train_steps(tmp_path / "a", way, 3, MIXED_MODEL)
    assert (losses, files) == train_steps(tmp_path / "b", whole, 3, MIXED_MODEL)
    for layer in range(MIXED_MODEL.layers):
        rounded, kept = (load_file(tmp_path / "a" / f"{kind}-1" / f"layer-{layer:03}.safetensors")
                         for kind in ("weights", "master"))  # fmt: skip
        assert all((kept[name].astype(value.dtype) == value).all() for name, value in rounded.items())
        assert kept["up"].dtype == np.float32 and rounded["up"].dtype.itemsize == 2
        assert (kept["up"] != rounded["up"].astype(np.float32)).mean() > 0.9


def test_mixed_precision_agrees_with_pytorch(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    made = runner(tmp_path, TRAINING[6], training=True, model=MIXED_MODEL)
    losses, gradients = in_float64(made, 2)
    assert made.train(2).losses == pytest.approx(losses, rel=3e-3)
    made.close()
    for layer, expected in enumerate(gradients):
        found = load_file(made.store.path("gradients", layer))
        for name, wanted in expected.items():
            if name != "key.bias":  # has no gradient but rounding
                off = np.abs(found[name].astype(np.float64) - wanted)
                assert off.mean() <= 2e-2 * np.abs(wanted).mean() + 1e-7, (layer, name)


@pytest.mark.parametrize("way", [*INFERENCE, WHOLE, *RUN], ids=lambda w: w.text)
def test_memory_stays_below_what_the_planner_says(way: Way, tmp_path: Path) -> None:
    training = way in TRAINING
    model = evolve(MODEL, layers=8)
    says = float(fit(columns([way]), model, HERE, training=training).memory[0])
    made = runner(tmp_path, way, training=training, model=model, memory=says)
    _ = made.train(1) if training else made.infer(0)
    made.close()
    assert made.report.memory <= says


def test_layers_are_timed_after_a_step_within_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_rate, "WINDOW_SECONDS", 0.01)
    model = evolve(MODEL, hidden=128, sequence=4)
    says = float(fit(columns([INFERENCE[1]]), model, HERE, training=False).memory[0])
    made = runner(tmp_path, INFERENCE[1], training=False, model=model, memory=says)
    before = made.infer(0)
    assert predict(made).terms["total"] > 0
    assert all(np.array_equal(before[key], found) for key, found in made.infer(0).items())
    made.close()


def test_a_model_much_larger_than_its_memory_runs(tmp_path: Path) -> None:
    model = evolve(MODEL, layers=24)
    made = runner(tmp_path, INFERENCE[1], training=False, model=model, memory=1.2e6)
    made.infer(0)
    made.close()
    assert made.report.memory <= 1.2e6 < 4 * model.parameters / 3


@pytest.mark.parametrize("mapped", [False, True])
def test_host_memory_and_disk_share_a_folder(
    mapped: bool, uninterrupted_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    mounts = tmp_path / "mounts"
    mounts.write_text(f"1 0 {os.major(device)}:{os.minor(device)} / / rw - {'tmpfs' if mapped else 'ext4'} x rw\n")
    monkeypatch.setattr(mapped_files, "MOUNTS", mounts)
    compiled = kernels(MODEL, True, True)
    plan = ClusterPlan(MODEL, HERE, TRAINING[6], True)
    store = open_store(tmp_path / "sizes", MODEL, [0, 1, 2, 3], training=False)
    room = 2.2 * store.layer_bytes(0, training=True)
    made = Runner(plan, tmp_path / "disk", kernels=compiled, seed=3, host=(tmp_path / "host", room))
    first = made.train(1).losses
    assert (made.mover.mapped.find(made.store.path("weights", 1)) is not None) == mapped
    made.close()
    again = Runner(plan, tmp_path / "disk", kernels=compiled, seed=3)  # it knows where its files are
    losses = first + again.train(3).losses
    again.close()
    assert losses == uninterrupted_run[0]
    files = [again.store.path("weights", layer, 1) for layer in range(4)]
    assert [path.read_bytes() for path in files] == uninterrupted_run[1]
    assert [path.is_relative_to(tmp_path / "host") for path in files] == [False, True, False, True]


def test_too_little_memory_is_one_error_with_usage(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match=r"more than fits in the 0\.2 MB of device memory") as caught:
        runner(tmp_path, INFERENCE[0], training=False, memory=2e5).infer(0)
    assert "weights" in str(caught.value)


def test_a_layer_file_is_ordinary_safetensors(tmp_path: Path) -> None:
    made = runner(tmp_path, INFERENCE[0], training=False)
    made.close()
    tensors = load_file(made.store.path("weights", 2))
    assert tensors["up"].shape == (64, 256)
    assert sum(t.size for t in tensors.values()) == MODEL.block_parameters


def test_tensors_of_odd_sizes_begin_at_vector_alignment(tmp_path: Path) -> None:
    store = open_store(tmp_path, ODD, [0], training=False)
    assert all(offset % 256 == 0 for offset in store.layout("weights", 0).offsets.values())
    tensors = load_file(store.path("weights", 0))
    filling = {name: tensors.pop(name) for name in list(tensors) if name.startswith("filling.")}
    assert sum(t.size for t in tensors.values()) == ODD.block_parameters
    assert sum(t.size for t in filling.values()) == store.elements(0) - ODD.block_parameters > 0
    assert not any(t.any() for t in filling.values())


def test_a_truncated_file_is_named_before_the_run(tmp_path: Path) -> None:
    made = runner(tmp_path, INFERENCE[0], training=False)
    made.close()
    path = made.store.path("weights", 1)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(PlanError, match=r"layer-001.safetensors: expected \d+ bytes, found \d+"):
        runner(tmp_path, INFERENCE[0], training=False)


def test_a_file_cut_short_while_running_is_named(tmp_path: Path) -> None:
    made = runner(tmp_path, INFERENCE[0], training=False)
    path = made.store.path("weights", 3)
    os.truncate(path, made.store.layout("weights", 0).start)
    with pytest.raises(PlanError, match="layer-003"):
        made.infer(0)
    made.close()


def test_another_model_s_folder_is_refused(tmp_path: Path) -> None:
    runner(tmp_path, INFERENCE[0], training=False).close()
    with pytest.raises(PlanError, match="holds another model"):
        runner(tmp_path, INFERENCE[0], training=False, model=evolve(MODEL, layers=8))


def test_a_damaged_header_is_refused(tmp_path: Path) -> None:
    made = runner(tmp_path, INFERENCE[0], training=False)
    made.close()
    with made.store.path("weights", 0).open("r+b") as file:
        file.seek(20)
        file.write(b"??")
    with pytest.raises(PlanError, match="not those of the plan's model"):
        runner(tmp_path, INFERENCE[0], training=False)


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_shows_before_training_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PlanError, match="the disk is full"):
        runner(tmp_path, TRAINING[2], training=True)
    monkeypatch.undo()
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(train_steps(tmp_path, TRAINING[2], 1)[0]) == 1


@pytest.mark.parametrize("writes", [1, 7, 15])
def test_a_full_disk_in_a_step_loses_nothing(
    writes: int, uninterrupted_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(tmp_path / "part", TRAINING[6], training=True)
    made.train(1)
    real, count = os.pwritev, [0]

    def limit(*arguments: Any) -> int:
        count[0] += 1
        return full() if count[0] > writes else real(*arguments)

    monkeypatch.setattr(os, "pwritev", limit)
    with pytest.raises(PlanError, match=r"the disk is full.*goes on from the last finished step"):
        made.train(3)
    monkeypatch.undo()
    made.close()
    losses, files = train_steps(tmp_path / "part", TRAINING[6], 3)
    assert (losses, files) == (uninterrupted_run[0][1:], uninterrupted_run[1])


def test_a_killed_process_resumes_after_the_last_step(uninterrupted_run: Any, tmp_path: Path) -> None:
    way, compiled = TRAINING[6], write_kernels(kernels(MODEL, True, True), tmp_path / "kernels")
    save_cluster_plan(ClusterPlan(MODEL, HERE, way, True), tmp_path / "plan.json")
    program = f"""
        import os, signal
        from pathlib import Path
        from cuts.cluster.plans.plan_file import load_cluster_plan
        from cuts.cluster.running import Runner
        from cuts.tests.cluster.kernel_files import read_kernels
        plan, folder = load_cluster_plan({str(tmp_path / "plan.json")!r}), {str(tmp_path / "part")!r}
        runner = Runner(plan, folder, kernels=read_kernels(Path({str(compiled)!r})), seed=3)
        runner.train(1)
        store = runner.updates.store_chunk
        def killed(layer, *rest):
            if layer == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return store(layer, *rest)
        runner.updates.store_chunk = killed
        runner.train(3)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, check=False, timeout=300
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    losses, files = train_steps(tmp_path / "part", way, 3)
    assert (losses, files) == (uninterrupted_run[0][1:], uninterrupted_run[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimiser": "sgd"}, "optimiser"),
        ({"hidden": 96, "heads": 32, "gated": True}, "expected heads of an even width to run, found 3 elements"),
        ({"batch": 7}, "batch"),
    ],
)
def test_a_plan_that_can_not_run_says_why(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CutsError, match=words):
        Runner(ClusterPlan(evolve(MODEL, **change), HERE, WHOLE, "optimiser" in change), tmp_path)


def test_a_plan_for_several_processes_needs_several(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="takes 2 processes, 1 run"):
        Runner(ClusterPlan(MODEL, HERE, evolve(WHOLE, dp=2), False), tmp_path)
