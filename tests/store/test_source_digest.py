"""Stored results are tied to the sources that produced them."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from cuts.store import source_digest as this_version
from cuts.store.source_digest import compiler_digest, model_digest

digest = compiler_digest.__wrapped__


def test_a_version_is_that_of_its_sources() -> None:
    assert digest() == digest() == compiler_digest()
    assert len({digest("ir"), digest("ir", "passes"), digest()}) == 3
    assert model_digest() == digest("ir", "passes")


def test_sources_changed_while_running_make_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest()
    monkeypatch.setattr(this_version, "_START_TIME", 0.0)
    assert len({before, digest(), digest()}) == 3
    monkeypatch.setattr(time, "time", lambda: 1.0)
    assert digest() == before, "a file of the future says that clocks differ"


def test_sources_begin_with_the_package() -> None:
    """A module that is imported late knows when its process began."""
    text = (
        "import time, cuts.ir; before = time.time(); time.time = lambda: 5.0\n"
        "from cuts.store import source_digest; assert 5.0 < source_digest._START_TIME <= before"
    )
    subprocess.run([sys.executable, "-c", text], check=True)
