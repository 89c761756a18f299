"""Plans on several processes, joined by Gloo on the CPU.

Stages and groups compute the results of one process.

Two processes run all plans, one after another: starting them takes longer than a run.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from attrs import evolve
from cuts.cluster.graphs import partition_parameter, replicated_parameters
from cuts.cluster.kernels import Kernels, compile_kernels
from cuts.cluster.plans import Machine, Transformer
from cuts.cluster.plans.plan_file import ClusterPlan, save_cluster_plan
from cuts.cluster.plans.ways import Way
from cuts.cluster.running import Runner
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
pytest.importorskip("torch", reason="PyTorch is not installed")

MODEL = Transformer("tiny", layers=4, hidden=64, heads=4, sequence=16, batch=8, precision="single")
HERE = Machine("here", 1, 2, 1e10, 1.0, 1e9, 1e9, 1e9, 1e9, 1e9)
ALONE = Way(1, 1, 1, "AR", 1, "nothing", "recompute+offload")

TRAINING = [
    Way(1, 1, 2, "AR", 1, "nothing", "recompute+offload"),
    Way(1, 1, 2, "PR", 1, "nothing", "recompute+offload"),
    Way(2, 1, 1, "PR", 1, "nothing", "recompute"),
    Way(1, 2, 1, "PR", 1, "nothing", "recompute+offload"),
]
#: Kernels of these ways are others, which takes long to compile.
NIGHTLY_WAYS = [Way(1, 1, 2, "AR", 1, "gradients", "keep"), Way(1, 2, 1, "AR", 1, "nothing", "keep")]
TRAINING += NIGHTLY_WAYS * NIGHTLY
#: Stages of one layer: where the pipeline drains, one step after the other adds to the same gradients.
ONE_LAYER = Way(1, 1, 2, "AR", 1, "nothing", "recompute")
SHALLOW = evolve(MODEL, layers=2)
INFERENCE = [Way(1, 1, 2, policy, 1, "nothing", "keep") for policy in ("AR", "PR")] + [Way(1, 2, 1, "PR", 1)]
#: A model with an embedding and a head, which share their table, in stages and in shared layers.
NETWORK = Transformer("gpt", 2, 64, 4, 16, 4, vocabulary=53, precision="single")
NETWORK_WAYS = [Way(1, 1, 2, "AR", 1, "nothing", "recompute"), Way(1, 2, 1, "PR", 1, "gradients", "recompute")]
#: Results of each process, by model and way, beside the folder of the plan.
Results: TypeAlias = dict[tuple[Transformer, Way], tuple[Path, list[dict[str, Any]]]]
#: Model, way and whether it is trained, by test.
PLANS = {
    "test_training_on_two_processes_is_training_on_one": [(MODEL, way, True) for way in TRAINING],
    "test_single_layer_stages_keep_accumulated_gradients": [(SHALLOW, ONE_LAYER, True)],
    "test_stages_and_shared_layers_train_as_one_process": [(NETWORK, way, True) for way in NETWORK_WAYS],
    "test_inference_on_two_processes_is_inference_on_one": [(MODEL, way, False) for way in INFERENCE],
}

#: A process: it runs plans and prints its results. Data follows from the place in the whole mini-batch, so that groups
#: divide it.
PROGRAM = """
    import json, sys
    from pathlib import Path
    import torch.distributed
    from cuts.cluster.plans.plan_file import load_cluster_plan
    from cuts.cluster.running import Runner
    from cuts.cluster.torch_engine import TorchEngine
    from cuts.tests.cluster.kernel_files import read_kernels
    from cuts.tests.cluster.test_processes import batches_of, outcome

    for place, compiled in json.load(open(sys.argv[1])):
        plan = load_cluster_plan(place)
        way = plan.way
        runner = Runner(plan, Path(place).with_suffix(""), engine=lambda device: TorchEngine(device, way.p, way.wp),
                        kernels=read_kernels(Path(compiled)), seed=3, batches=batches_of(plan))
        print(json.dumps(outcome(runner)))
    runner.engine.close()
"""


def batches_of(plan: ClusterPlan) -> Any:
    """Return the data of a plan.

    A micro-batch's numbers follow from its place in the mini-batch.
    """
    share = plan.model.batch // plan.way.dp // plan.way.micro
    shape = (plan.way.micro, plan.model.sequence, plan.model.hidden)

    def batches(step: int, group: int, micro: int) -> Any:
        generator = np.random.default_rng([step, group * share + micro])
        if plan.model.vocabulary:
            return generator.integers(0, plan.model.vocabulary, (2, *shape[:2]), np.int32)
        return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)

    return batches


def outcome(runner: Runner) -> dict[str, Any]:
    """Run a plan, and return its results."""
    if runner.plan.training:
        found: dict[str, Any] = {"losses": runner.train(2).losses}
    else:
        found = {"outputs": {str(k): float(np.float64(v).sum()) for k, v in runner.infer(0).items()}}
    runner.close()
    return found


@cache
def kernels(model: Transformer, training: bool, recompute: bool, parts: int) -> Kernels:
    """Compile once for all plans of a model."""
    way = evolve(ALONE, wp=parts, activations="recompute" if recompute else "keep")
    return compile_kernels(ClusterPlan(model, HERE, way, training), "opencl")


def compiled_for(model: Transformer, way: Way, training: bool) -> Kernels:
    recompute = training and way.activations.startswith("recompute")
    return kernels(MODEL if model is SHALLOW else model, training, recompute, way.wp)


@pytest.fixture(scope="module")
def on_two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[Transformer, Way], tuple[Path, list[dict[str, Any]]]]:
    """Run the plans of all chosen tests on two processes.

    Return the folder of each, and the results of its processes.
    """
    root, work = tmp_path_factory.mktemp("two"), []
    plans = [plan for item in request.session.items if item.path == request.path for plan in PLANS[item.name]]
    for number, (model, way, training) in enumerate(plans):
        save_cluster_plan(ClusterPlan(model, HERE, way, training), root / f"{number}.json")
        made = compiled_for(model, way, training)
        work.append((str(root / f"{number}.json"), str(write_kernels(made, root / f"kernels-{id(made)}"))))
    (root / "work.json").write_text(json.dumps(work))
    found = zip(plans, zip(*on_processes(root / "work.json"), strict=True), strict=True)
    return {(model, way): (root / str(n), list(each)) for n, ((model, way, _), each) in enumerate(found)}


def on_processes(work: Path) -> list[list[dict[str, Any]]]:
    """Start two processes, and return their output."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(2):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in names.items()} | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(work)]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    found = []
    for process in started:
        out, error = process.communicate(timeout=400)
        assert process.returncode == 0, error
        found.append([json.loads(line) for line in out.splitlines() if line.startswith("{")])
    return found


@cache
def results_alone(activations: str, training: bool, folder: Path, model: Transformer = MODEL) -> dict[str, Any]:
    """Return the results of a single process, the current one."""
    way = evolve(ALONE, activations=activations)
    plan = ClusterPlan(model, HERE, way, training)
    return outcome(Runner(plan, folder, kernels=compiled_for(model, way, training), seed=3, batches=batches_of(plan)))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs on one process."""
    return tmp_path_factory.mktemp("one")


def test_training_on_two_processes_is_training_on_one(on_two: Any, one: Path) -> None:
    for way in TRAINING:
        check_training(way, on_two, one)


def check_training(way: Way, on_two: Results, one: Path) -> None:
    """Compare losses and weights with those of one process."""
    activations = way.activations if way.dp == 1 else "recompute+offload"
    expected = results_alone(activations, True, one / activations)
    folder, both = on_two[MODEL, way]
    assert both[0]["losses"] == both[1]["losses"] == pytest.approx(expected["losses"], rel=1e-6), way.text
    if way.wp > 1:
        check_parts(way, [folder / f"part-{w}" for w in range(way.wp)], one / activations)
        return
    folders = [folder / f"group-{g}" for g in range(way.dp)] if way.dp > 1 else [folder]
    for layer in range(MODEL.layers):
        name = f"weights-0/layer-{layer:03}.safetensors"
        mine = np.frombuffer((one / activations / name).read_bytes()[-4 * MODEL.block_parameters :], np.float32)
        for each in folders:
            other = np.frombuffer((each / name).read_bytes()[-4 * MODEL.block_parameters :], np.float32)
            if way.dp == 1:
                assert (mine == other).all()
            else:  # gradients are summed in another order, and Adam may divide by rounding errors alone
                assert np.abs(mine - other).mean() < 1e-5


def test_single_layer_stages_keep_accumulated_gradients(on_two: Any, one: Path) -> None:
    expected = results_alone("recompute+offload", True, one / "shallow", SHALLOW)
    _, both = on_two[SHALLOW, ONE_LAYER]
    assert both[0]["losses"] == pytest.approx(expected["losses"], rel=1e-6)


def test_stages_and_shared_layers_train_as_one_process(on_two: Any, one: Path) -> None:
    expected = results_alone("recompute", True, one / "network", NETWORK)["losses"]
    for way in NETWORK_WAYS:
        _, both = on_two[NETWORK, way]
        assert both[0]["losses"] == both[1]["losses"] == pytest.approx(expected, rel=1e-6), way.text
    folder, _ = on_two[NETWORK, NETWORK_WAYS[0]]
    first, last = (load_file(folder / "weights-0" / f"layer-{n:03}.safetensors")["table"] for n in (0, 3))
    assert (first == last).all()


def check_parts(way: Way, folders: list[Path], one: Path) -> None:
    """Compare every GPU's part of a layer with a single process.

    All GPUs have equal values of replicated tensors.
    """
    for layer in range(MODEL.layers):
        name = f"weights-0/layer-{layer:03}.safetensors"
        whole, parts = load_file(one / name), [load_file(folder / name) for folder in folders]
        whole.pop("key.bias")  # its gradient is a rounding error, which Adam divides by its own magnitude
        for key, expected in whole.items():
            for part, found in enumerate(each[key] for each in parts):
                # sums are of another order
                assert np.abs(found - partition_parameter(key, expected, part, way.wp)).mean() < 1e-5, (key, part)
        assert all((parts[0][key] == parts[1][key]).all() for key in replicated_parameters(MODEL))


def test_inference_on_two_processes_is_inference_on_one(on_two: Any, one: Path) -> None:
    expected = results_alone("keep", False, one / "inference")["outputs"]
    for way in INFERENCE:
        _, (first, second) = on_two[MODEL, way]
        if way.p > 1:
            assert second["outputs"] == expected, way.text
            assert not first["outputs"], way.text
        else:
            assert first["outputs"] == second["outputs"]
            assert first["outputs"] == {key: pytest.approx(value, abs=2e-3) for key, value in expected.items()}
