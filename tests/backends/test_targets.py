"""Targets: what is described, how names find it, and what an unknown name is told."""

from __future__ import annotations

import pytest
from cuts.backends.devices import find_target
from cuts.backends.targets import descriptions, known_targets, target_aliases
from cuts.ir.errors import UsageError


def test_every_known_name_finds_a_target() -> None:
    for name in (*known_targets(), *target_aliases()):
        if name != "cuda:device":  # insists on a GPU
            assert find_target(name).dialect == name.partition(":")[0]


@pytest.mark.parametrize(
    ("name", "arch", "sms"),
    [("cuda:sm_90", "sm_90", 132), ("cuda:V100", "sm_70", 80), ("cuda:rtx2080", "sm_75", 46), ("opencl", "", 2)],
)
def test_names_find_machines(name: str, arch: str, sms: int) -> None:
    target = find_target(name)
    assert (target.arch, target.NUM_SM) == (arch, sms)


def test_relatives_keep_the_name_that_was_asked_for() -> None:
    assert find_target("cuda:sm_90a").arch == "sm_90a"
    assert find_target("cuda:sm_72").arch == "sm_72"


@pytest.mark.parametrize(
    "name", ["", "metal", "cuda:sm_999", "cuda:sm_", "cuda:sm_1", "opencl:h200", "cuda:'; rm -rf", "sm_90"]
)
def test_unknown_targets_list_what_exists(name: str) -> None:
    with pytest.raises(UsageError, match=r"targets are: opencl, .*cuda:sm_90.* cuda, .*cuda:h200") as caught:
        find_target(name)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("description", descriptions(), ids=lambda d: d.target.name)
def test_descriptions_are_consistent(description: object) -> None:
    target = description.target
    assert target.MAX_shared + target.shared_reserved <= target.shared_per_sm
    assert target.MAX_thread <= target.warps_per_sm * target.warp_size
    assert target.TRANS_global * 4 % target.sector_bytes == 0
    # Peak arithmetic cannot exceed what the issue slots allow, nor DRAM the L2 cache.
    assert target.PERF_peak <= 2.001 * target.NUM_SM * target.issue_per_clock * target.warp_size * target.clock
    assert target.BW_global < target.l2_bandwidth
