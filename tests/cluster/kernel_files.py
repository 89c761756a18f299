"""Files of compiled kernels that several processes share.

Compiling takes longer than training.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import asdict
from cuts.cluster.kernels import Kernels
from cuts.runtime.files import load_plan, save_plan
from cuts.runtime.plan import Plan


def write_kernels(made: Kernels, folder: Path) -> Path:
    """Write kernels into a folder.

    Each plan has its field's name and index.
    """
    parts = asdict(made, recurse=False)
    folder.mkdir(exist_ok=True)
    for name, value in parts.items():
        for place, plan in enumerate(value if isinstance(value, tuple) else (value,)):
            if isinstance(plan, Plan) and not (folder / f"{name}-{place}").exists():
                save_plan(plan, folder / f"{name}-{place}")
    marks = {name: [isinstance(each, Plan) or each for each in value] if isinstance(value, tuple)
             else isinstance(value, Plan) or value for name, value in parts.items()}  # fmt: skip
    (folder / "kernels.json").write_text(json.dumps(marks))
    return folder


def read_kernels(folder: Path) -> Kernels:
    """Return the kernels that a folder has."""

    def part(name: str, place: int, mark: object) -> object:
        if mark is True:
            return load_plan(folder / f"{name}-{place}")
        return tuple(mark) if isinstance(mark, list) else mark

    found: dict[str, Any] = {}
    for name, marks in json.loads((folder / "kernels.json").read_text()).items():
        several = isinstance(marks, list)
        parts = [part(name, place, mark) for place, mark in enumerate(marks if several else [marks])]
        found[name] = tuple(parts) if several else parts[0]
    return Kernels(**found)
