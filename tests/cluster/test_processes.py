"""Plans on several processes, joined by Gloo on the CPU: stages and groups compute what one process computes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from cuts.cluster.describe import Machine, Transformer
from cuts.cluster.plan_file import ClusterPlan, save_cluster_plan
from cuts.cluster.ways import Way
from cuts.tests.needs import opencl_reason

pytestmark = [pytest.mark.opencl, pytest.mark.skipif(bool(opencl_reason()), reason=opencl_reason() or "it is here")]
pytest.importorskip("torch", reason="PyTorch is not installed")

MODEL = Transformer("tiny", layers=4, hidden=64, heads=4, sequence=16, batch=8, precision="single")
HERE = Machine("here", 1, 2, 1e10, 1.0, 1e9, 1e9, 1e9, 1e9, 1e9)
ALONE = Way(1, 1, 1, "AR", 1, "nothing", "recompute+offload")

#: A process: it runs a plan and prints what it found. Data is of the whole mini-batch's place, so that groups share it
#: out.
PROGRAM = """
    import json, sys
    import numpy as np
    from cuts.cluster.plan_file import load_cluster_plan
    from cuts.cluster.running import Runner
    path, folder = sys.argv[1:3]
    plan = load_cluster_plan(path)
    share = plan.model.batch // plan.way.dp // plan.way.micro

    def batches(step, group, micro):
        generator = np.random.default_rng([step, group * share + micro])
        shape = (plan.way.micro, plan.model.sequence, plan.model.hidden)
        return generator.standard_normal(shape, np.float32), generator.standard_normal(shape, np.float32)

    engine = None
    if plan.way.gpus > 1:
        from cuts.cluster.torch_engine import TorchEngine
        engine = lambda device: TorchEngine(device, plan.way.p)
    runner = Runner(plan, folder, engine=engine, seed=3, batches=batches)
    if plan.training:
        found = {"losses": runner.train(2).losses}
    else:
        found = {"outputs": {k: float(np.float64(v).sum()) for k, v in runner.infer(0).items()}}
    runner.close()
    if runner.engine.size > 1:
        runner.engine.close()
    print(json.dumps(found | {"rank": runner.engine.rank}))
"""


def run(way: Way, training: bool, folder: Path) -> list[dict[str, Any]]:
    """Run a plan in its processes; return what each printed."""
    save_cluster_plan(ClusterPlan(MODEL, HERE, way, training), folder.with_suffix(".json"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for rank in range(way.gpus):
        names = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": way.gpus,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        environment = os.environ | {name: str(value) for name, value in names.items()} | {"OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(folder.with_suffix(".json")), str(folder)]
        started.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    found = []
    for process in started:
        out, error = process.communicate(timeout=400)
        assert process.returncode == 0, error
        found.append(json.loads(out.splitlines()[-1]))
    return sorted(found, key=lambda each: each["rank"])


@pytest.mark.parametrize(
    "way",
    [
        Way(1, 1, 2, "AR", 1, "nothing", "recompute+offload"),
        Way(1, 1, 2, "PR", 1, "nothing", "recompute+offload"),
        Way(2, 1, 1, "PR", 1, "nothing", "recompute"),
        Way(1, 1, 2, "AR", 1, "gradients", "keep"),
    ],
    ids=lambda w: w.text,
)
def test_training_on_two_processes_is_training_on_one(way: Way, tmp_path: Path) -> None:
    (alone,) = run(
        evolve(ALONE, activations=way.activations if way.dp == 1 else "recompute+offload"), True, tmp_path / "alone"
    )
    both = run(way, True, tmp_path / "both")
    assert both[0]["losses"] == both[1]["losses"] == pytest.approx(alone["losses"], rel=1e-6)
    folders = [tmp_path / "both" / f"group-{g}" for g in range(way.dp)] if way.dp > 1 else [tmp_path / "both"]
    for layer in range(MODEL.layers):
        name = f"weights-0/layer-{layer:03}.safetensors"
        one = np.frombuffer((tmp_path / "alone" / name).read_bytes()[-4 * MODEL.block_parameters :], np.float32)
        for folder in folders:
            other = np.frombuffer((folder / name).read_bytes()[-4 * MODEL.block_parameters :], np.float32)
            if way.dp == 1:
                assert (one == other).all()
            else:  # gradients are summed in another order, and Adam divides by what may be rounding alone
                assert np.abs(one - other).mean() < 1e-5


@pytest.mark.parametrize("policy", ["AR", "PR"])
def test_inference_on_two_stages_is_inference_on_one(policy: str, tmp_path: Path) -> None:
    (alone,) = run(evolve(ALONE, activations="keep"), False, tmp_path / "alone")
    both = run(Way(1, 1, 2, policy, 1, "nothing", "keep"), False, tmp_path / "both")
    assert both[1]["outputs"] == alone["outputs"]
    assert not both[0]["outputs"]
