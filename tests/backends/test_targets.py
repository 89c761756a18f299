"""Targets: descriptions, lookup by name, and the message for an unknown name."""

from __future__ import annotations

from pathlib import Path

import cuts
import pytest
from attrs import evolve
from cuts.backends import choose_target, devices
from cuts.backends.devices import find_target
from cuts.backends.targets import Description, described_device, descriptions, known_targets, target_aliases
from cuts.cli.main import main
from cuts.ir import DType, Graph, Node, TensorType
from cuts.ir.errors import BackendError, UsageError
from cuts.ir.machine import MMA_INSTRUCTIONS


def test_every_known_name_finds_a_target() -> None:
    for name in (*known_targets(), *target_aliases()):
        if name not in ("cuda:device", "auto"):  # the first insists on a GPU, the other may be any
            assert find_target(name).dialect == name.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "arch", "sms"),
    [
        ("cuda:sm_90", "sm_90", 132),
        ("cuda:h100", "sm_90", 132),
        ("cuda:V100", "sm_70", 80),
        ("cuda:rtx2080", "sm_75", 46),
        ("cuda:t4", "sm_75", 40),
        ("cuda:sm_80", "sm_80", 108),
        ("cuda:a100", "sm_80", 108),
        ("cuda:sm_86", "sm_86", 72),
        ("cuda:rtx3090", "sm_86", 82),
        ("cuda:sm_89", "sm_89", 142),
        ("cuda:rtx4090", "sm_89", 128),
        ("cuda:L4", "sm_89", 58),
        ("cuda:b200", "sm_100", 148),
        ("cuda:sm_120", "sm_120", 170),
        ("opencl", "", 2),
    ],
)
def test_names_find_machines(name: str, arch: str, sms: int) -> None:
    target = find_target(name)
    assert (target.arch, target.NUM_SM) == (arch, sms)


@pytest.mark.parametrize(
    ("device", "arch", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", "sm_80", "NVIDIA A100"),
        ("NVIDIA A10", "sm_86", "NVIDIA A10"),
        ("NVIDIA GeForce RTX 3090", "sm_86", "NVIDIA GeForce RTX 3090"),
        ("NVIDIA RTX A6000", "sm_86", "NVIDIA A10"),
        ("NVIDIA GeForce RTX 4090", "sm_89", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA L4", "sm_89", "NVIDIA L4"),
        ("NVIDIA L40", "sm_89", "NVIDIA L40S"),
        ("NVIDIA H100 80GB HBM3", "sm_90", "NVIDIA H100"),
        ("NVIDIA H200", "sm_90", "NVIDIA H200"),
        ("Tesla T4", "sm_75", "NVIDIA T4"),
        ("NVIDIA B200", "sm_100", "NVIDIA B200"),
        ("NVIDIA GeForce RTX 5090", "sm_120", "NVIDIA GeForce RTX 5090"),
        ("Orin", "sm_87", "sm_87 (numbers of NVIDIA A10)"),
    ],
)
def test_gpu_is_described_by_its_driver_name(device: str, arch: str, name: str) -> None:
    assert described_device(device, arch).name == name


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("cuda:sm_90a", "H200"),
        ("cuda:sm_72", "V100"),
        ("cuda:sm_87", "A10"),
        ("cuda:sm_88", "A10"),
        ("cuda:sm_103", "B200"),
    ],
)
def test_relatives_keep_the_name_that_was_asked_for(name: str, relative: str) -> None:
    target = find_target(name)
    assert (target.arch, target.name.endswith(f"{relative})")) == (name.partition(":")[2], True)


def test_every_name_means_one_machine() -> None:
    cuda = [item for item in descriptions() if item.target.dialect == "cuda"]
    names = [alias for item in cuda for alias in item.aliases]
    assert len(set(names)) == len(names)
    assert {item.target.arch for item in cuda} == {item.target.arch for item in cuda if item.represents}


@pytest.mark.parametrize(
    "name", ["", "metal", "cuda:sm_999", "cuda:sm_", "cuda:sm_1", "opencl:h200", "cuda:'; rm -rf", "sm_90"]
)
def test_unknown_targets_list_what_exists(name: str) -> None:
    with pytest.raises(UsageError, match=r"targets are: opencl, .*cuda:sm_90.* cuda, .*cuda:h200") as caught:
        find_target(name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("description", descriptions(), ids=lambda d: d.target.name)
def test_descriptions_are_consistent(description: Description) -> None:
    target = description.target
    assert target.MAX_shared + target.shared_reserved <= target.shared_per_sm
    assert target.MAX_thread <= target.warps_per_sm * target.warp_size
    assert target.TRANS_global * 4 % target.sector_bytes == 0
    # Peak arithmetic cannot exceed the issue slots, nor DRAM the L2 cache.
    assert target.PERF_peak <= 2.001 * target.NUM_SM * target.issue_per_clock * target.warp_size * target.clock
    assert target.BW_global < target.l2_bandwidth


#: Dense peak rates of documents: operations per second of f16 products that are added up in f32, of TF32 and of 8 bits.
PEAKS = {
    "a100": (312e12, 156e12, 624e12),
    "a10": (125e12, 62.5e12, 250e12),
    "rtx3090": (71e12, 35.6e12, 284e12),
    "l4": (121e12, 60e12, 242e12),
    "l40s": (362.05e12, 183e12, 733e12),
    "rtx4090": (165.2e12, 82.6e12, 660.6e12),
    "rtx5090": (209.5e12, 104.8e12, 838e12),
    "t4": (65e12,),
    "rtx2080": (40.3e12,),
}


@pytest.mark.parametrize("name", PEAKS)
def test_instruction_clocks_add_up_to_documented_rates(name: str) -> None:
    target = find_target(f"cuda:{name}")
    for names, peak in zip((("f16", "bf16"), ("tf32",), ("i8", "u8")), PEAKS[name], strict=False):
        rates = [
            2 * atom.m * atom.n * atom.k / clocks * 4 * target.NUM_SM * target.clock
            for atom, clocks in ((MMA_INSTRUCTIONS[each], clocks) for each, clocks in target.atoms)
            if atom.format in names and not atom.reads_shared
        ]
        assert rates
        assert all(rate == pytest.approx(peak, rel=0.025) for rate in rates)


@pytest.mark.parametrize("description", descriptions(), ids=lambda d: d.target.name)
def test_machines_list_known_instructions_and_instruction_set(description: Description) -> None:
    target = description.target
    assert {name for name, _ in target.atoms} <= set(MMA_INSTRUCTIONS)
    if target.dialect == "cuda":
        arch = int(target.arch.removeprefix("sm_"))
        warp = {name for name, row in MMA_INSTRUCTIONS.items() if not row.reads_shared}
        before_ada = {name for name in warp if not MMA_INSTRUCTIONS[name].format.startswith("f8")}
        warp = warp if arch >= 89 else before_ada
        every = (
            set(MMA_INSTRUCTIONS) if arch == 90 else warp if arch >= 80 else {"m16n8k8_f16"} if arch >= 75 else set()
        )
        assert {name for name, _ in target.atoms} == every


def test_targets_without_coefficients_take_those_of_fitted_machines() -> None:
    h200, cpu = find_target("cuda:h200"), find_target("opencl:cpu")
    # Machines without products of warpgroups state the factor of the others.
    costs = [item.target.costs for item in descriptions()]
    assert {evolve(found, fragment_products=1.0) for found in costs} == {evolve(h200.costs, fragment_products=1.0)}
    assert {found.fragment_products for found in costs} == {1.0, h200.costs.fragment_products}
    assert {item.target.core_costs for item in descriptions()} == {cpu.core_costs}


class Machine:
    """Devices of a machine, in place of its driver's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.patch, self.listed = monkeypatch, folder / "gpus"
        self.listed.mkdir()
        monkeypatch.setattr(devices, "_LISTED_GPUS", self.listed)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        self.answer("cuda.query_target", BackendError("no driver", hint="install it"))

    def answer(self, call: str, answer: object) -> None:
        """Let a query of CUDA return a value, or raise an error."""

        def respond(*_: object) -> object:
            if isinstance(answer, Exception):
                raise answer
            return answer

        self.patch.setattr(f"cuts.backends.{call}", respond)

    def has_gpu(self, alias: str) -> None:
        (self.listed / "0000:01:00.0").mkdir()
        self.answer("cuda.query_target", find_target(alias))
        self.answer("compilers.find_toolchain", "a compiler")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_a_machine_without_gpu_has_opencl(machine: Machine) -> None:
    assert (choose_target().name, choose_target().note) == ("opencl", "")
    assert find_target("auto").dialect == "opencl"


def test_a_gpu_is_taken_and_named(machine: Machine) -> None:
    machine.has_gpu("cuda:a100")
    assert choose_target().name == "cuda:device"
    assert choose_target().note.startswith("target cuda: NVIDIA A100;")
    assert find_target("auto").arch == "sm_80"


@pytest.mark.parametrize("call", ["cuda.query_target", "compilers.find_toolchain"])
def test_a_gpu_without_its_packages_is_left_out(machine: Machine, call: str) -> None:
    machine.has_gpu("cuda:a100")
    machine.answer(call, BackendError("it is missing", hint="pip install it"))
    assert choose_target().name == "opencl"
    assert choose_target().note.endswith("the GPU of this machine is left out: it is missing; pip install it")
    machine.patch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_target().note == ""


def test_a_build_and_a_command_take_the_gpu(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.has_gpu("cuda:a100")
    type_ = TensorType(DType.F32, (2, 4))
    graph = Graph("relu", ("x",), ("y",), {"x": type_, "y": type_}, (Node("relu_y", "relu", ("x",), ("y",)),))
    monkeypatch.setattr("cuts.backends.compilers.toolchains", lambda: ())
    assert cuts.build(graph).target.name == "NVIDIA A100"
    cuts.save_graph(graph, tmp_path / "relu.json")
    assert main(["compile", str(tmp_path / "relu.json"), "-o", str(tmp_path / "plan")]) == 0
    assert "target cuda: NVIDIA A100; --target opencl takes the processor" in capsys.readouterr().err
    assert cuts.load(tmp_path / "plan").target.arch == "sm_80"
    assert main(["compile", str(tmp_path / "relu.json"), "--target", "opencl", "-o", str(tmp_path / "plan")]) == 0
    assert "NVIDIA A100" not in capsys.readouterr().err
