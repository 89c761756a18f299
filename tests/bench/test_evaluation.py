"""Models, ledger, tables and figure of the paper's evaluation.

The models compute PyTorch's results; ledger, tables and figure agree with the measurements.
"""

from __future__ import annotations

import copy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuts.bench.networks import isolation as isolated
from cuts.bench.networks import ledger, tables
from cuts.bench.networks.command import line
from cuts.bench.networks.models import APPLICATIONS, BY_NAME, ModelWorkload, workloads
from cuts.bench.networks.peer_calls import Compiled
from cuts.bench.networks.systems import ModelCase, _is_complex
from cuts.bench.networks.training import MOMENTUM, RATE, STEPS, loss_of, steps_by_xla, without_dropout
from cuts.bench.tools.records import read_rows
from cuts.compile.build import build
from cuts.search.processes.child import Child

from ..needs import needs_opencl

#: Exporters warn of their own insides.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.long]
ROOT = Path(__file__).parents[2]
OWN = ("DeepSpeech2", "Attention-RNN", "DLRM", "BERT-base")


def make_model(name: str) -> tuple[Any, tuple[Any, ...]]:
    if BY_NAME[name.lower()].images and find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    return BY_NAME[name.lower()].make(2, True)


@needs_opencl
@pytest.mark.parametrize("name", [*OWN, "MobileNetV2"])
def test_a_small_network_computes_what_pytorch_does(name: str) -> None:
    network, inputs = make_model(name)
    with torch.no_grad():
        wanted = network(*inputs).numpy()
        exact = copy.deepcopy(network).double()(*(x.double() if x.is_floating_point() else x for x in inputs)).numpy()
    plan = build(torch.export.export(network, inputs), target="opencl")
    found = next(iter(plan.run({n: x.numpy() for n, x in zip(plan.inputs, inputs, strict=True)}).values()))
    allowed = 20 * max(np.abs(wanted - exact).max(), 1e-7 * np.abs(exact).max())
    assert np.abs(found - exact).max() <= allowed


def test_moving_the_network_leaves_the_program_intact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program shares its parameters with the network.

    Other contenders take these to the GPU between two readers of the program.
    """
    network, moves = torch.nn.Linear(3, 2), []
    monkeypatch.setattr(network, "to", lambda *place, **kind: moves.append(place) or network)
    case = ModelCase(ModelWorkload(BY_NAME["dlrm"], "inference", 1), (network, (torch.zeros(1, 3),)), torch, 1.0)
    assert case.program is case.program
    assert moves.count(("cpu",)) == 2


@pytest.mark.parametrize("name", ["DLRM", "BERT-base"])
def test_xla_gets_the_same_network(name: str) -> None:
    for package in ("jax", "torchax"):
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=(ImportError, AttributeError))
    network, inputs = make_model(name)
    xla = Compiled(torch.export.export(network, inputs), inputs)
    with torch.no_grad():
        wanted = network(*inputs).numpy()
    for found in (xla.result, xla.loop(2)):
        np.testing.assert_allclose(np.array(found), wanted, rtol=1e-4, atol=1e-5)
    assert xla.time_loop().median > 0


@pytest.mark.parametrize("name", ["DLRM", "BERT-base"])
def test_xla_takes_the_same_steps(name: str) -> None:
    for package in ("jax", "torchax"):
        pytest.importorskip(package, reason=f"{package} is not installed", exc_type=(ImportError, AttributeError))
    network, inputs = make_model(name)
    trained = without_dropout(torch, copy.deepcopy(network)).train()
    loss, optimiser = loss_of(torch, trained(*inputs).detach()), torch.optim.SGD(trained.parameters(), RATE, MOMENTUM)
    losses = []
    for _ in range(STEPS):
        losses.append(loss(trained(*inputs)))
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    _, steps = steps_by_xla(torch, (network, inputs))
    assert float(steps(STEPS)) == pytest.approx(float(losses[-1]), rel=1e-5)


@pytest.mark.parametrize("name", [model.name for model in APPLICATIONS])
def test_a_step_of_training_lowers_the_loss(name: str) -> None:
    network, inputs = make_model(name)
    without_dropout(torch, network).train()
    loss = loss_of(torch, network(*inputs).detach())
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    first = loss(network(*inputs))
    first.backward()
    optimiser.step()
    assert loss(network(*inputs)) < first


def test_there_are_32_workloads() -> None:
    found = workloads()
    assert sum(w.task == "inference" for w in found) == 24
    assert sum(w.task == "training" for w in found) == 8
    assert len({w.label for w in found}) == 32
    assert [w.batch for w in found[:8]] == [1] * 8


def row(system: str, ms: float, model: str = "DLRM", batch: int = 1, gpu: str = "A", **more: Any) -> dict[str, Any]:
    facts = {"model": model, "task": "inference", "batch": batch, "precision": "fp32", "system": system, "ms": ms}
    facts["device"] = gpu
    return {**facts, "versions": {"torch": "2"}, "date": "2026-11-22T00:00:00Z", "budget_s": 20.0, **more}


ROWS = [
    row("cuts mixed", 1.0), row("PyTorch", 3.0), row("torch.compile", 2.0), row("cuts fusion", 1.5),
    row("cuts mixed", 4.0, "ResNet-50"), row("PyTorch", 2.0, "ResNet-50"),
    row("PyTorch", 2.0, "BERT-base"), row("cuts mixed", 2.0, "BERT-base", 64),
]  # fmt: skip


def test_a_ledger_goes_on_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    for each in ROWS:
        ledger.keep(path, each)
    ledger.keep(path, row("cuts mixed", 0.9))
    found = read_rows(path)
    assert len(found) == len(ROWS)
    assert next(r["ms"] for r in found if r["model"] == "DLRM" and r["system"] == "cuts mixed") == 0.9
    asked = ledger.requested_pairs(["dlrm:1", "bert-base:64"], ["cuts mixed", "PyTorch"])
    assert [(w.label, s) for w, s in ledger.missing(found, asked, "A")] == [("BERT-base b64", "PyTorch")]
    assert ledger.missing(found, asked, "B") == asked


def test_a_failure_takes_no_results_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    ledger.keep(path, row("PyTorch", 1.0))
    failed = {k: v for k, v in row("PyTorch", 1.0).items() if k != "ms"} | {"failure": "out of memory"}
    ledger.keep(path, failed)
    assert [r.get("ms") for r in read_rows(path)] == [1.0]
    assert line(failed).split() == ["DLRM", "b1", "inference", "fp32", "PyTorch", "failed:", "out", "of", "memory"]


def test_wins_are_counted_where_both_were_measured() -> None:
    assert tables.winners(ROWS) == {"MLP": {"cuts mixed": 1}, "CNN": {"PyTorch": 1}}
    assert tables.winners_table(ROWS).splitlines()[-1] == "| all | 1 of 2 | 1 of 2 | 0 of 1 |"
    steps = [row(name, ms, batch=2048, task="training") for name, ms in (("cuts mixed", 1.0), ("PyTorch", 4.0))]
    assert tables.winners([*ROWS, *steps])["training"] == {"cuts mixed": 1}
    assert "| training | 1 of 1 | 0 of 1 | 0 of 0 |" in tables.winners_table([*ROWS, *steps])
    assert tables.speedups([*ROWS, *steps]) == tables.speedups(ROWS)
    assert tables.speedups([*ROWS, *steps], "training") == {"cuts mixed": (pytest.approx(4.0), 1)}
    means = tables.speedups(ROWS)
    assert means["cuts fusion"] == (2.0, 1)
    assert means["cuts mixed"][0] == pytest.approx((3.0 * 0.5) ** 0.5)


def test_readme_compares_with_the_best_peer() -> None:
    found = tables.readme_table(ROWS)
    assert "| DLRM | 1 | 1 | 3 | 2 | 2.00 |" in found
    assert "BERT" not in found
    assert found.endswith("Milliseconds on A, strict fp32, 2026-11-22, PyTorch 2; `cuts` searched for 20 s.")


def test_other_precisions_are_no_rows_of_the_evaluation() -> None:
    half = [row(name, ms, precision="fp16") for name, ms in (("cuts mixed", 0.1), ("PyTorch", 0.2))]
    assert ledger.measured_rows([*ROWS, *half]) == ledger.measured_rows(ROWS)
    asked = ledger.requested_pairs(["dlrm:1:fp16", "dlrm:1:bf16"], ["cuts mixed"])
    assert [w.label for w, _ in ledger.missing([*ROWS, *half], asked, "A")] == ["DLRM b1 bf16"]


@pytest.mark.parametrize(
    "text", ["resnet", "dlrm", "dlrm:x", "dlrm:0", "nothing:1", "dlrm:training:1", "dlrm:1=x", "vision.alexnet:1"]
)
def test_what_is_no_workload_is_one_error(text: str) -> None:
    with pytest.raises(SystemExit, match="expected MODEL:BATCH"):
        ledger.parse_workload(text)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_other_networks_are_named_by_their_package() -> None:
    found = ledger.parse_workload("torchvision.squeezenet1_1:16")
    assert (found.label, found.task) == ("torchvision.squeezenet1_1 b16", "inference")
    module, (images,) = found.model.make(found.batch, True)
    assert module(images).shape == (16, 1000)
    with pytest.raises(SystemExit, match=r"torchvision\.NAME"):
        ledger.parse_workload("torchvision.nothing:1")


def test_a_figure_is_reproducible(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from cuts.docs.make_speedup_figure import draw

    for name in ("a", "b"):
        draw(ROWS, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert "RNN and MLP inference" in (tmp_path / "a").read_text()


def test_complex_kernels_sum_products_beyond_a_window() -> None:
    network, inputs = make_model("MobileNetV2")
    plan = build(torch.export.export(network, inputs), target="opencl", mode="no-fusion")
    for group in plan.plan.groups:
        operation = group["ops"][0]
        if operation in ("relu", "clip", "add", "reduce_mean", "batch_norm"):
            assert not _is_complex(group["form"]), operation
    assert any(_is_complex(group["form"]) for group in plan.plan.groups if group["ops"] == ["conv"])
    assert not all(_is_complex(group["form"]) for group in plan.plan.groups if group["ops"] == ["conv"])


def test_a_hanging_or_failing_system_costs_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolated, "PATIENCE", -7.0)
    bout = isolated.Bout(ModelWorkload(BY_NAME["dlrm"], "inference", 1), ["PyTorch", "torch.compile"], 5.0)
    assert isolated.text_of(bout.workload) == "dlrm:1:fp32"
    bout.child = Child("cuts.tests.search.services:Hanging")
    rows = [bout.measure(system, 100.0) for system in bout.systems]
    bout.child.close()
    assert [row["failure"] for row in rows] == ["no answer in 1 seconds", "RuntimeError: out of memory"]


def test_a_child_hosts_the_systems_of_a_workload() -> None:
    bout = isolated.Bout(ModelWorkload(BY_NAME["dlrm"], "inference", 1), ["PyTorch"], 5.0)
    module, _, name = bout.child.service.partition(":")
    assert callable(getattr(import_module(module), name))


def test_systems_that_spoil_a_process_have_their_own() -> None:
    bout = isolated.Bout(ModelWorkload(BY_NAME["dlrm"], "inference", 1), ["XLA", "max-autotune"], 5.0)
    bout.child = Child("cuts.tests.search.services:Counting")
    assert [bout.measure(system, 100.0)["calls"] for system in ("PyTorch", "XLA", "max-autotune")] == [1, 2, 1]
    bout.child.close()


def test_budgets_are_part_of_what_a_row_takes() -> None:
    asked = ModelWorkload(BY_NAME["dlrm"], "training", 2048, 40.0)
    assert ledger.parse_workload(isolated.text_of(asked)) == asked
    bout = isolated.Bout(asked, ["cuts mixed"], 40.0)
    assert bout.expected_seconds("cuts mixed") - 40.0 > bout.expected_seconds("PyTorch")
    infers = isolated.Bout(ledger.parse_workload("dlrm:1"), ["cuts mixed"], 40.0)
    assert (
        infers.expected_seconds("cuts mixed") - 40.0
        == infers.expected_seconds("cuts 120 s") - 120.0
        > infers.expected_seconds("PyTorch")
    )
    assert bout.expected_seconds("torch.compile") > infers.expected_seconds("torch.compile")


def test_a_curve_reports_slowdowns_and_gains_of_measuring() -> None:
    rows = [row(f"cuts {name}", ms) for name, ms in (("untuned", 3.0), ("10 s", 2.0), ("30 s", 2.2), ("mixed", 1.5))]
    text, mean = tables.anytime([*rows, row("PyTorch", 9.0, "ResNet-50")])
    assert text.splitlines()[2:] == ["| DLRM b1 | 3 | 2 | 2.2 | 1.5 | 10.0% | 2.00 |"]
    assert mean == "Untuned over tuned, geometric mean of 1: 2.00."


def test_curves_ignore_slowdowns_between_versions() -> None:
    times = (("untuned", 3.0, "b"), ("10 s", 2.0, "b"), ("30 s", 2.5, "a"), ("60 s", 2.55, "a"))
    text, _ = tables.anytime([row(f"cuts {name}", ms, commit=commit) for name, ms, commit in times])
    assert "| 2.0% |" in text


def test_a_workload_says_its_name() -> None:
    assert ModelWorkload(BY_NAME["dlrm"], "training", 2048).label == "DLRM b2048 training"


def test_a_workload_may_have_its_own_budget() -> None:
    assert ledger.parse_workload("DLRM:2048=15").budget == 15.0
    assert ledger.parse_workload("dlrm:training").budget is None
    assert ledger.parse_workload("dlrm:training=9") == ModelWorkload(BY_NAME["dlrm"], "training", 2048)
