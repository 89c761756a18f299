"""Writes `docs/reference/stages.md`, the stages of a compilation: `python docs/make_stages.py`."""

from __future__ import annotations

from pathlib import Path

from cuts.bench.tools.markdown import markdown_table
from cuts.ops import Registry
from cuts.passes.pipeline import all_stages

DOCUMENT = Path(__file__).parent / "reference" / "stages.md"
HEAD = """# Stages

`python docs/make_stages.py` writes this page from `passes/pipeline.py`. Files lie in `passes/`.
[Architecture](../architecture.md#the-passes) explains how stages work together, and [the
tutorial](../tutorials/step_through_the_pipeline.md) prints them.
"""


def document() -> str:
    """Return the page."""
    stages = all_stages(Registry.builtin())
    rows = ([f"`{s.name}`", s.summary, ", ".join(f"`{name}`" for name in s.files)] for s in stages)
    return f"{HEAD}\n{markdown_table(['stage', 'from -> to', 'where'], rows)}\n"


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
