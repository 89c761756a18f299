"""Names of processors that PoCL does not know.

The memory looks like PoCL's.
"""

from __future__ import annotations

import ctypes

import pytest
from cuts.backends.opencl.device_choice import choose_device
from cuts.backends.opencl.processor import name_processor
from cuts.tests.needs import needs_opencl

HAS = frozenset(["sse2", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"])
TRIPLE = "x86_64-unknown-linux-gnu"


class Described:
    """Device as PoCL describes it: words, some of them addresses of texts."""

    def __init__(self, *words: str | int) -> None:
        self.texts = {n: ctypes.create_string_buffer(w.encode()) for n, w in enumerate(words) if isinstance(w, str)}
        values = [ctypes.addressof(self.texts[n]) if n in self.texts else int(w) for n, w in enumerate(words)]
        self.words = (ctypes.c_size_t * 200)(*values)

    def rename_processor(self, flags: frozenset[str] = HAS) -> list[str]:
        """Name the processor and return the texts."""
        done = name_processor(ctypes.addressof(self.words), flags)
        texts = [text.value.decode() for text in self.texts.values()]
        assert done == ("haswell" in texts)
        return texts


def test_unknown_processor_gets_name_of_older_one() -> None:
    assert Described(4096, 0, TRIPLE, "generic", 7).rename_processor() == [TRIPLE, "haswell"]


@pytest.mark.parametrize("words", [(TRIPLE, "znver3"), ("generic", TRIPLE), ("aarch64-linux", "generic"), (1, 2**63)])
def test_what_is_no_unknown_processor_is_left_alone(words: tuple[str | int, ...]) -> None:
    assert Described(*words).rename_processor() == [w for w in words if isinstance(w, str)]


def test_a_processor_that_lacks_instructions_keeps_its_name() -> None:
    assert Described(TRIPLE, "generic").rename_processor(HAS - {"avx2"}) == [TRIPLE, "generic"]


@needs_opencl
def test_kernels_are_built_on_whatever_processor_this_is() -> None:
    assert choose_device().device.available
