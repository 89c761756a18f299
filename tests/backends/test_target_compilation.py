"""Every CUDA target's kernels compile for its architecture."""

from __future__ import annotations

import pytest
from cuts.backends.cuda.compile import compile_kernel
from cuts.backends.source import emit
from cuts.backends.targets import descriptions
from cuts.passes.lowering import extract, lower
from cuts.passes.schedule import choose
from cuts.tests.needs import require_architecture
from cuts.tests.search_space.groups import conv, matmul, softmax

TARGETS = [each.target for each in descriptions() if each.target.dialect == "cuda"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_kernels_of_every_target_compile(target):
    require_architecture(target.arch)
    for group in (matmul(96, 96, 64), conv(1, 16, 32, 14), softmax(64, 256)):
        kernel = extract(lower(group, choose(group, target)[0].schedule, {}, target))
        assert compile_kernel(emit(kernel, "cuda", {}), target.arch).code.startswith(b"\x7fELF")
