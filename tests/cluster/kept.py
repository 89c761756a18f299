"""Kernels that one process compiles and others open: compiling them takes longer than training does."""

from __future__ import annotations

import json
from pathlib import Path

from attrs import asdict
from cuts.cluster.kernels import Kernels
from cuts.runtime.plan import Plan
from cuts.runtime.plan_file import load_plan, save_plan


def saved(made: Kernels, folder: Path) -> Path:
    """Write kernels into a folder, each plan by the name of its field."""
    parts = asdict(made, recurse=False)
    for name, value in parts.items():
        if isinstance(value, Plan) and not (folder / name).exists():
            folder.mkdir(exist_ok=True)
            save_plan(value, folder / name)
    (folder / "kernels.json").write_text(
        json.dumps({name: isinstance(value, Plan) or value for name, value in parts.items()})
    )
    return folder


def opened(folder: Path) -> Kernels:
    """Return the kernels that a folder has."""
    parts = json.loads((folder / "kernels.json").read_text())
    return Kernels(**{name: load_plan(folder / name) if value is True else value for name, value in parts.items()})
