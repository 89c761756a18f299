"""Profiling of layers without a GPU.

The calls run on the CPU, a fake recorder returns the kernels.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cuts.latency.dataset import GAP_NETWORKS
from cuts.latency.profiling import profile, tables, trace
from cuts.latency.profiling import tasks as layer_tasks
from cuts.latency.profiling.networks import UNKNOWN
from cuts.latency.profiling.tasks import SETS, TRAINING_CHANNELS, Chunk, LayerTask
from cuts.latency.profiling.trace import KernelDigests, TracedKernel, TraceError, calls_of, kernels_of, summary
from cuts.tests.amounts import NIGHTLY
from cuts.tests.models import torchvision_models

torch = pytest.importorskip("torch", reason="layers are profiled through PyTorch")
MARK = TracedKernel("at::cuda::(anonymous namespace)::spin_kernel(long)", us=1.0)


class FakeRecorder:
    """Recorder of one kernel between markers, with the call count in microseconds."""

    def __init__(self) -> None:
        self.kernels: list[TracedKernel] = []
        self.calls = 0

    def record(self, run: Callable[[], None]) -> list[TracedKernel]:
        self.kernels.clear()
        run()
        return list(self.kernels)

    def mark(self) -> None:
        if self.calls % 2:
            self.kernels.append(
                TracedKernel("gemm<128, 64>", (self.calls % 4 // 2 + 1, 2, 1), (256, 1, 1), us=self.calls)
            )
        self.calls += 1
        self.kernels.append(MARK)

    def flush(self) -> None:
        self.kernels.append(TracedKernel("fill", us=60.0))


@pytest.fixture
def bench(tmp_path: Path) -> profile.LayerBench:
    memory = profile.RandomPool(torch, "cpu", 400_000, 400_000)
    return profile.LayerBench(torch, memory, FakeRecorder(), 2, tmp_path, KernelDigests(), float("inf"), "cpu")


def event(category: str, name: str, ts: float, dur: float = 1.0, **args: object) -> dict[str, object]:
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args}


def test_a_trace_is_cut_at_the_markers() -> None:
    events = [
        event(
            "kernel",
            "sgemm_128x64",
            30.0,
            7.5,
            grid=[4, 2, 1],
            block=[256, 1, 1],
            **{"registers per thread": 128, "shared memory": 4096},
        ),
        event("cuda_runtime", "cudaLaunchKernel", 2.0),
        event("kernel", MARK.name, 20.0),
        event("gpu_memset", "Memset (Device)", 25.0, 1.5),
        event("kernel", "fill", 10.0, 60.0),
        event("kernel", MARK.name, 40.0),
        event("kernel", "fill", 50.0),
        event("kernel", MARK.name, 60.0),
        event("kernel", MARK.name, 70.0),
    ]
    first, second = calls_of(kernels_of(events), 2)
    assert [kernel.name for kernel in first] == ["Memset (Device)", "sgemm_128x64"]
    assert first[1] == TracedKernel("sgemm_128x64", (4, 2, 1), (256, 1, 1), 128, 4096)
    assert first[1].us == 7.5
    assert second == ()


def test_a_trace_with_a_lost_marker_is_refused() -> None:
    with pytest.raises(TraceError, match="expected 4 markers, found 3"):
        calls_of([MARK, MARK, MARK], 2)


def test_repeated_calls_are_summed_up_by_medians() -> None:
    calls = [(TracedKernel("a", us=1.0 + i), TracedKernel("b", us=10.0)) for i in range(3)]
    assert summary(calls) == {"us": [12.0, 11.0, 13.0], "each": [2.0, 10.0]}
    assert summary([*calls, (TracedKernel("c", us=99.0),)])["odd"] == 1


def test_digests_identify_kernels_and_are_written_once() -> None:
    names = KernelDigests()
    small, large = TracedKernel("a", registers=32), TracedKernel("a", registers=64)
    assert names.launches((small, small))[0] != names.launches((large,))[0]
    assert len(names.fresh("one")) == 2
    assert names.fresh("one") == []
    assert len(names.fresh("two")) == 2


def test_evaluation_and_training_have_distinct_input_channels() -> None:
    trained = {task.shape[1] for task in layer_tasks.edges()}
    assert trained <= set(TRAINING_CHANNELS)
    assert not trained & {task.shape[1] for task in (*layer_tasks.held_out(), *layer_tasks.sweep())}


def test_tasks_are_reasonable_and_unique() -> None:
    tasks = [task for make in SETS.values() for task in make()]
    assert len({task.key for task in tasks}) >= 0.98 * len(tasks)
    assert all(layer_tasks.reasonable(task.shape) for task in tasks if task.op == "conv2d")


def test_chunks_are_reproducible_and_complete() -> None:
    first = layer_tasks.chunks(["held", "pointwise"])
    assert first == layer_tasks.chunks(["held", "pointwise"])
    held = [task.precision for chunk in first for task in chunk.tasks if task.kind == "held"]
    assert held.count("fp32") == held.count("tf32") == len(list(layer_tasks.held_out()))
    assert all(task.precision == chunk.precision for chunk in first for task in chunk.tasks)


def test_keys_make_ordered_chunks_with_alternating_precisions() -> None:
    tasks = [
        LayerTask("edges", "r2", "conv2d", (1, c, 9, 9, 8, 3, 3, 2, 2, 1, 1, 1, 1), precision)
        for precision, count in (("fp32", 4), ("tf32", 8))
        for c in range(1, count + 1)
    ]
    found = layer_tasks.listed_chunks([task.key for task in tasks], 2)
    assert [chunk.precision for chunk in found] == ["fp32", "tf32", "tf32", "fp32", "tf32", "tf32"]
    assert [chunk.number for chunk in found] == list(range(6))
    assert [task for precision in ("fp32", "tf32") for c in found if c.precision == precision for task in c.tasks] == (
        tasks
    )


def test_later_measurements_replace_layers_of_data_sets() -> None:
    old = [("edges", "r2", "conv2d", "fp32", "1x2", "0", 1.0), ("held", "r2", "conv2d", "fp32", "1x2", "0", 2.0)]
    new = [("edges", "r2", "conv2d", "fp32", "1x2", "1", 3.0), ("edges", "r2", "conv2d", "tf32", "1x2", "1", 4.0)]
    assert [row[-1] for row in tables.merge_rows(old, new)] == [3.0, 2.0, 4.0]
    numbers = tables.Numbers([(0, "a"), (1, "b")])
    assert [numbers[name] for name in "cab"] == [2, 0, 1]


def small_tasks() -> list[LayerTask]:
    conv = (1, 4, 9, 9, 8, 3, 3, 2, 2, 1, 1, 1, 1)
    image = (1, 8, 12, 12)
    pools = [LayerTask("other", op, op, (*image, 3, 2, 1)) for op in layer_tasks.POOLS]
    return [
        LayerTask("held", "r2", "conv2d", conv),
        LayerTask("other", "linear", "linear", (2, 16, 8)),
        *(LayerTask("other", op, op, image) for op in layer_tasks.POINTWISE),
        *pools,
    ]


def test_every_operation_is_measured_cold_and_warm(bench: profile.LayerBench) -> None:
    tasks = small_tasks()
    with torch.no_grad():
        assert profile.measure_layers(bench, [Chunk(0, "fp32", tuple(tasks))], "layers.jsonl") == 0
    rows = [json.loads(line) for line in (bench.folder / "layers.jsonl").read_text().splitlines()]
    measured = [row for row in rows if "cold" in row]
    assert [row["task"] for row in measured] == [task.key for task in tasks]
    assert [row["cold"]["us"] for row in measured][1] == [11.0, 9.0, 13.0]
    known = {row["kernel"] for row in rows if "name" in row}
    assert {kernel[0] for row in measured for kernel in row["kernels"]} == known
    assert rows[-1]["tasks"] == len(tasks)


def test_a_failing_task_is_reported_and_others_measured(bench: profile.LayerBench) -> None:
    bad = LayerTask("held", "r2", "conv2d", (1, 4, 9, 9, 8, 30, 30, 1, 1, 0, 0, 1, 1))
    with torch.no_grad():
        rows = profile.measure_chunk(bench, Chunk(0, "fp32", (bad, *small_tasks()[:1])))
    assert "failed" in rows[0]
    assert "cold" in rows[1]


def test_chunks_end_with_the_time(bench: profile.LayerBench) -> None:
    bench.ends = 0.0
    assert profile.measure_layers(bench, [Chunk(0, "fp32", ()), Chunk(1, "fp32", ())], "layers.jsonl") == 2


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is:DeprecationWarning")  # PyTorch's own use of it
@pytest.mark.parametrize("name", ["squeezenet1_1", "resnet18"] if NIGHTLY else ["squeezenet1_1"])
def test_networks_are_measured_layer_by_layer(
    bench: profile.LayerBench, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    torchvision_models()
    monkeypatch.setattr(profile, "graph_seconds", lambda *_: [1.0])
    with torch.no_grad():
        *layers, whole = profile.measure_network(bench, name, 1, "fp32")
    assert whole["whole"] == [1.0]
    targets = [row["target"] for row in layers]
    assert {"Conv2d", "MaxPool2d", "AdaptiveAvgPool2d"} <= set(targets)
    assert not {"BatchNorm2d", "iadd"} & set(targets)
    assert layers[0]["attributes"]["kernel_size"] == [3, 3] or layers[0]["attributes"]["kernel_size"] in (
        (7, 7),
        (3, 3),
    )
    assert layers[0]["inputs"] == [[1, 3, 224, 224]]
    json.dumps(layers)


def test_evaluation_networks_are_not_trained_on() -> None:
    assert len(UNKNOWN) == 10
    assert not set(GAP_NETWORKS) & set(UNKNOWN)


def test_a_truncated_file_is_read_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "layers.jsonl"
    path.write_text('{"chunk":0,"seconds":1}\n{"chu', encoding="utf-8")
    assert list(profile.finished_rows(path)) == [{"chunk": 0, "seconds": 1}]
    assert "cut short" in capsys.readouterr().err
    assert not list(trace.kernels_of([]))


def test_a_profiler_with_wrong_records_is_detected(bench: profile.LayerBench) -> None:
    with torch.no_grad():
        profile.probe(bench)
        bench.recorder.mark = lambda: bench.recorder.kernels.append(TracedKernel("other"))
        with pytest.raises(TraceError, match=r"expected 8 markers, found 0; recorded: \[\('other', 8\)"):
            profile.probe(bench)


def test_runs_of_one_kernel_become_one_row(bench: profile.LayerBench) -> None:
    with torch.no_grad():
        profile.measure_layers(bench, [Chunk(0, "fp32", tuple(small_tasks()[:2]))], "layers.jsonl")
    records = list(profile.finished_rows(bench.folder / "layers.jsonl"))
    rows = tables.layer_rows(records, tables.Numbers())
    assert [row[:4] for row in rows] == [("held", "r2", "conv2d", "fp32"), ("other", "linear", "linear", "fp32")]
    twice = {**records[-2], "kernels": records[-2]["kernels"] * 2}
    for state in ("cold", "warm"):
        twice[state] = {**twice[state], "each": [1.5, 2.5]}
    assert tables.collapse_kernels(twice) == [(twice["kernels"][0], 2, 4.0, 4.0)]
