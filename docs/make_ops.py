"""Writes `docs/ops.md`, the manual of all operations, from the declarations: `python docs/make_ops.py`."""

from __future__ import annotations

from pathlib import Path

from cuts.ops import Registry
from cuts.ops.manual import manual

if __name__ == "__main__":
    Path(__file__).with_name("ops.md").write_text(manual(Registry.builtin()), encoding="utf-8")
